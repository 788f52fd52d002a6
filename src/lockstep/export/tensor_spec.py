"""Descriptions of the inputs and outputs of an exported policy."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lockstep.envs.spaces import MASK, Path

__all__ = [
    "ACTION",
    "INFO_MASK",
    "NEXT_STATE",
    "OBSERVATION",
    "STATE",
    "TensorSpec",
    "check_names",
    "name_of",
    "torch_type",
]

OBSERVATION, ACTION, INFO_MASK = "observation", "action", MASK
STATE, NEXT_STATE = "state", "next_state"  # no two arrays of an ONNX graph have the same name


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape per environment, type and meaning of an input or output."""

    name: str
    shape: tuple[int, ...]
    """Shape after the batch dimension."""
    dtype: torch.dtype
    meaning: str

    @property
    def type_name(self) -> str:
        """Name of the type, such as `float32`."""
        return str(self.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        return f"{self.name} {self.type_name} [{', '.join(['N', *map(str, self.shape)])}]"


def name_of(root: str, path: Path) -> str:
    """Return the name of a part of a space, such as `observation.camera.0` for `observation["camera"][0]`."""
    return ".".join([root, *map(str, path)])


def torch_type(kind: np.dtype[Any]) -> torch.dtype:
    """Return the PyTorch type of a NumPy type."""
    return torch.from_numpy(np.zeros(0, kind)).dtype


def check_names(kind: str, specs: Sequence[TensorSpec]) -> None:
    """Check the names of the `inputs` or `outputs`. Raises ValueError in one line for a name that two have."""
    name, count = Counter(spec.name for spec in specs).most_common(1)[0]
    if count > 1:  # such as the keys "a.b" and, one level deeper, "a" and "b"
        raise ValueError(
            f"this policy can't be exported: two of its {kind} have the name {name!r}: the keys of each part, joined by dots, must be unique"
        )
