"""Checkpoints: folders that are created atomically, with files in safetensors and JSON, which contain no code.

agent.safetensors        weights, buffers and running statistics
optimizer.safetensors    Adam's moments and step counts, adaptive factors
acting.safetensors       with plan.lag, the agent that collects next
shard-0000.safetensors   one per shard: state of its environments
curiosity-0000.safetensors   one per shard, with curiosity: its state in the current episodes
state.json               iteration, counters, and the SHA-256 of every file (`manifest.py`)

`checkpoint_writer.py` writes them.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from reprlib import Repr
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from lockstep.files import WEIGHTS_LIMIT, read_file
from lockstep.run.manifest import STATE, CheckpointDamaged, is_whole_number, verify, with_advice

__all__ = ["Checkpoint", "CheckpointFailed", "SavedCounters"]

_shown = Repr()


class CheckpointFailed(RuntimeError):
    """A checkpoint can't be written, for example because the disk is full. All ranks raise it."""


class SavedCounters(NamedTuple):
    """The counters of a run at a checkpoint."""

    iteration: int
    env_steps: int
    seconds: float
    solved_at: int | None
    last_returns: list[float]
    env_faults: int = 0

    @classmethod
    def of(cls, state: Mapping[str, object]) -> "SavedCounters":
        """Read the counters of a state.json. Raises ValueError, naming the counter, if one is missing or of another type."""
        solved, returns = state.get("solved_at"), state.get("last_returns")
        if not isinstance(returns, list) or not all(map(_is_finite, returns)):
            raise ValueError(f"last_returns is {_shown.repr(returns)}: it must be a list of finite numbers")
        if not _is_finite(state.get("seconds")):
            raise ValueError(f"seconds is {_shown.repr(state.get('seconds'))}: it must be a finite number")
        optional = ["solved_at"] * (solved is not None) + ["env_faults"] * ("env_faults" in state)
        for name in ("iteration", "env_steps", *optional):
            if not is_whole_number(state.get(name)):
                raise ValueError(f"{name} is {_shown.repr(state.get(name))}: it must be a whole number of at least 0")
        return cls(**{name: state.get(name, cls._field_defaults.get(name)) for name in cls._fields})  # type: ignore[arg-type]


class Checkpoint:
    """A complete checkpoint."""

    def __init__(self, path: Path, verified: dict[str, object] | None = None) -> None:
        """Compare all files with their hashes, unless this process has done so: then `verified` is the result of `verify`.

        Raises CheckpointDamaged, naming the file and the newest checkpoint of the run that is intact, and ValueError for a newer version.
        """
        self.path = path
        try:
            self.state = verify(path) if verified is None else verified
        except CheckpointDamaged as error:
            raise with_advice(error, path) from None
        files = self.state["files"]
        assert isinstance(files, dict)
        self._files: dict[str, str] = files

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Load the tensors of file `name`.safetensors. Raises CheckpointDamaged if this checkpoint has no such file."""
        if f"{name}.safetensors" not in self._files:
            raise CheckpointDamaged(
                f"checkpoint {self.path}: {name}.safetensors can't be read ({STATE} does not list it)"
            )
        try:
            return load(read_file(self.path / f"{name}.safetensors", WEIGHTS_LIMIT))
        except (OSError, SafetensorError) as error:
            raise CheckpointDamaged(f"checkpoint {self.path}: {name}.safetensors can't be read ({error})") from None

    def shard(self, index: int) -> dict[str, Tensor]:
        """Load the `Shard.state` of a shard."""
        return self.tensors(f"shard-{index:04d}")


def _is_finite(value: object) -> bool:
    return is_whole_number(value) or (isinstance(value, float) and math.isfinite(value))
