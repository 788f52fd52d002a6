"""The named arrays that go into an exported policy and come out of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lockstep.envs.spaces import MASK, Path

__all__ = ["ACTION", "INFO_MASK", "NEXT_STATE", "OBSERVATION", "STATE", "TensorSpec", "name_of", "torch_type"]

OBSERVATION, ACTION, INFO_MASK = "observation", "action", MASK
STATE, NEXT_STATE = "state", "next_state"  # no two arrays of an ONNX graph have the same name


@dataclass(frozen=True)
class TensorSpec:
    """One input or output: what it is called, what it holds for each of `N` environments, and what that is."""

    name: str
    shape: tuple[int, ...]
    """Behind the batch's dimension."""
    dtype: torch.dtype
    meaning: str

    @property
    def type_name(self) -> str:
        """`float32`."""
        return str(self.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        return f"{self.name} {self.type_name} [{', '.join(['N', *map(str, self.shape)])}]"


def name_of(root: str, path: Path) -> str:
    """`observation.camera.0` for what is at `["camera"][0]` of an observation."""
    return ".".join([root, *map(str, path)])


def torch_type(kind: np.dtype[Any]) -> torch.dtype:
    """The same type in PyTorch."""
    return torch.from_numpy(np.zeros(0, kind)).dtype
