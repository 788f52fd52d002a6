"""Checkpoints: folders that are created atomically, with files in safetensors and JSON, which contain no code.

agent.safetensors        weights, buffers and running statistics
optimizer.safetensors    Adam's moments and step counts, adaptive factors
acting.safetensors       with plan.lag, the agent that collects next
shard-0000.safetensors   one per shard: state of its environments
curiosity-0000.safetensors   one per shard, with curiosity: its state in the current episodes
state.json               iteration, counters, and the SHA-256 of every other file
"""

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from reprlib import Repr
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from lockstep.group.group import Group
from lockstep.run.evaluations import read_best
from lockstep.run.folder import RunFolder, sync_folder

__all__ = ["Checkpoint", "SavedCounters", "pack", "prune", "remove_checkpoints_after", "write_checkpoint"]

_VERSION = 1
_FILE = re.compile(r"\w[\w.-]*", re.ASCII)
"""Names of files in a checkpoint, which can't refer to another folder."""
_shown = Repr()


def write_checkpoint(
    folder: RunFolder,
    iteration: int,
    group: Group,
    states: Mapping[str, Mapping[str, Tensor]],
    counters: Mapping[str, object],
) -> None:
    """Write a checkpoint. Every rank calls it and writes its `states`, tensors by file name and tensor name.

    Then rank 0 writes state.json, with the `counters`, and renames the folder. Raises OSError if a file can't be
    written, and RankLost if a rank does not take part in time.
    """
    final = folder.checkpoint(iteration)
    aside = final.with_name(f".{final.name}.partial")
    if group.rank == 0:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
    group.barrier("checkpoint")
    for name, state in states.items():
        _write(aside / f"{name}.safetensors", pack(state))
    group.barrier("checkpoint")
    if group.rank == 0:
        files = {path.name: _hash(path) for path in sorted(aside.iterdir())}
        summary = {"version": _VERSION, "iteration": iteration, **counters, "files": files}
        _write(aside / "state.json", f"{json.dumps(summary, indent=2)}\n".encode())
        sync_folder(aside)
        shutil.rmtree(final, ignore_errors=True)
        aside.rename(final)
        sync_folder(final.parent)
        sync_folder(folder.path)  # the first checkpoint has created a folder in it
    group.barrier("checkpoint")


def remove_checkpoints_after(folder: RunFolder, iteration: int) -> None:
    """Remove the checkpoints of later iterations, which a run that resumes from `iteration` will write again."""
    for later in reversed(folder.checkpoints()):
        if later > iteration:
            _remove(folder.checkpoint(later))


def prune(folder: RunFolder, keep: int, pending: Collection[int] = ()) -> None:
    """Remove incomplete checkpoints, and all but the newest `keep`, the best, and those `pending` evaluation."""
    # read best.json after `pending` was determined: a checkpoint that has been evaluated meanwhile may be the best now
    best = read_best(folder)
    for iteration in folder.checkpoints()[:-keep]:
        if iteration not in pending and (best is None or iteration != best.iteration):
            _remove(folder.checkpoint(iteration))
    for aside in (folder.path / "checkpoints").glob(".*.partial"):
        shutil.rmtree(aside, ignore_errors=True)


def _remove(checkpoint: Path) -> None:
    aside = checkpoint.with_name(f".{checkpoint.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    checkpoint.rename(aside)  # a kill must not leave an incomplete folder under this name
    shutil.rmtree(aside, ignore_errors=True)


class SavedCounters(NamedTuple):
    """The counters of a run at a checkpoint."""

    iteration: int
    env_steps: int
    seconds: float
    solved_at: int | None
    last_returns: list[float]

    @classmethod
    def of(cls, state: Mapping[str, object]) -> "SavedCounters":
        """Read the counters of a state.json. Raises ValueError, naming the counter, if one is missing or of another type."""
        solved, returns = state.get("solved_at"), state.get("last_returns")
        if not isinstance(returns, list) or not all(map(_is_finite, returns)):
            raise ValueError(f"last_returns is {_shown.repr(returns)}: it must be a list of finite numbers")
        if not _is_finite(state.get("seconds")):
            raise ValueError(f"seconds is {_shown.repr(state.get('seconds'))}: it must be a finite number")
        for name in ("iteration", "env_steps", *([] if solved is None else ["solved_at"])):
            if not _is_whole(state.get(name)):
                raise ValueError(f"{name} is {_shown.repr(state.get(name))}: it must be a whole number of at least 0")
        return cls(**{name: state.get(name) for name in cls._fields})  # type: ignore[arg-type]


class Checkpoint:
    """A complete checkpoint."""

    def __init__(self, path: Path) -> None:
        """Read state.json, and check all files against its hashes. Raises ValueError, naming the file, if one is broken."""
        self.path = path
        try:
            self.state = json.loads((path / "state.json").read_text())
            version, files = self.state["version"], self.state["files"]
            if not _is_whole(version) or not _is_whole(self.state["iteration"]) or not isinstance(files, dict):
                raise ValueError
            if not all(_FILE.fullmatch(name) and isinstance(expected, str) for name, expected in files.items()):
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise self._unusable("state.json is missing or broken") from None
        if version > _VERSION:
            raise ValueError(
                f"checkpoint {path} has version {version}, newer than this lockstep reads ({_VERSION}): upgrade lockstep"
            )
        if "agent.safetensors" not in files:
            raise self._unusable("state.json does not list agent.safetensors")
        for name, expected in files.items():
            if not (path / name).is_file() or _hash(path / name) != expected:
                raise self._unusable(f"{name} is missing, truncated or changed")
        self._files: dict[str, str] = files

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Load the tensors of file `name`.safetensors. Raises ValueError if this checkpoint has no such file."""
        if f"{name}.safetensors" not in self._files:
            raise self._unusable(f"{name}.safetensors can't be read (state.json does not list it)")
        try:
            return load((self.path / f"{name}.safetensors").read_bytes())
        except (OSError, SafetensorError) as error:
            raise ValueError(f"checkpoint {self.path}: {name}.safetensors can't be read ({error})") from None

    def _unusable(self, problem: str) -> ValueError:
        return ValueError(f"checkpoint {self.path}: {problem}; use an earlier one with --iteration")

    def shard(self, index: int) -> dict[str, Tensor]:
        """Load the `Shard.state` of a shard."""
        return self.tensors(f"shard-{index:04d}")


def pack(state: Mapping[str, Tensor]) -> bytes:
    """Serialize a state in the safetensors format."""
    # clones: parameters are views of one buffer, and safetensors requires tensors that own their memory
    return save({name: tensor.detach().clone().contiguous() for name, tensor in state.items()})


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_finite(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
