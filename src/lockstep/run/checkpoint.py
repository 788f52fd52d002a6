"""Checkpoints: folders that are created atomically, with files in safetensors and JSON, which contain no code.

agent.safetensors        weights, buffers and running statistics
optimizer.safetensors    Adam's moments and step counts, adaptive factors
acting.safetensors       with plan.lag, the agent that collects next
shard-0000.safetensors   one per shard: state of its environments
curiosity-0000.safetensors   one per shard, with curiosity: its state in the current episodes
state.json               iteration, counters, and the SHA-256 of every file (`manifest.py`)
"""

import errno
import math
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from reprlib import Repr
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from lockstep.files import WEIGHTS_LIMIT, create_file, make_folder, read_file, sync_folder
from lockstep.group.group import Group
from lockstep.run.evaluations import read_best
from lockstep.run.folder import FolderLost, RunFolder
from lockstep.run.manifest import (
    STATE,
    CheckpointDamaged,
    hash_file,
    is_whole_number,
    return_at,
    seal,
    verify,
    with_advice,
)

__all__ = [
    "Checkpoint",
    "CheckpointFailed",
    "SavedCounters",
    "check_folder",
    "pack",
    "prune",
    "remove_checkpoints_after",
    "write_checkpoint",
]

_shown = Repr()


class CheckpointFailed(RuntimeError):
    """A checkpoint can't be written, for example because the disk is full. All ranks raise it."""


def write_checkpoint(
    folder: RunFolder,
    iteration: int,
    group: Group,
    states: Mapping[str, Mapping[str, Tensor]],
    counters: Mapping[str, object],
    prepare: Callable[[], None] = lambda: None,
) -> None:
    """Write a checkpoint. Every rank calls it and writes its `states`, tensors by file name and tensor name.

    Rank 0 first calls `prepare`, which may raise OSError. At the end it writes state.json, with the `counters`, and renames the folder.
    Raises CheckpointFailed on all ranks if one of them can't write, FolderLost on all ranks if the run folder is gone, and RankLost if
    a rank does not take part in time.
    """
    final = folder.checkpoint(iteration)
    aside = _aside(final)

    def create() -> None:
        folder.check_present()
        prepare()
        make_folder(final.parent)
        _delete(aside)
        aside.mkdir()

    def write() -> None:
        for name, state in states.items():
            _write(aside / f"{name}.safetensors", pack(state))

    def complete() -> None:
        hashes = {path.name: hash_file(path) for path in sorted(aside.iterdir())}
        _write(aside / STATE, seal({"iteration": iteration, **counters}, hashes))
        sync_folder(aside)
        folder.check_present()
        _delete(final)
        aside.rename(final)
        sync_folder(final.parent)
        sync_folder(folder.path)  # the first checkpoint has created a folder in it

    try:
        for step, on_all_ranks in ((create, False), (write, True), (complete, False)):
            _together(group, folder, step if on_all_ranks or group.rank == 0 else lambda: None)
    except (CheckpointFailed, FolderLost):
        if group.rank == 0:
            _delete(aside)  # it takes space on a full disk
        raise


def _together(group: Group, folder: RunFolder, step: Callable[[], None]) -> None:
    """Call `step` on every rank. If it fails on one of them, raise CheckpointFailed or FolderLost on all."""
    code = 0
    try:
        step()
    except FolderLost:
        code = -1
    except OSError as error:
        code = _code_of(error, folder)
    codes = group.gather(torch.tensor([[code]]), "checkpoint").flatten().tolist()
    if -1 in codes:
        raise FolderLost(folder.path)
    failed = next((code for code in codes if code), 0)
    if failed:
        raise CheckpointFailed(os.strerror(failed))


def _code_of(error: OSError, folder: RunFolder) -> int:
    try:
        folder.check_present()
    except FolderLost:
        return -1
    return error.errno or errno.EIO


def check_folder(folder: RunFolder, group: Group) -> None:
    """Raise FolderLost on all ranks if the run folder is gone. Every rank calls it."""
    _together(group, folder, folder.check_present if group.rank == 0 else lambda: None)


def remove_checkpoints_after(folder: RunFolder, iteration: int) -> None:
    """Remove the checkpoints of later iterations, which a run that resumes from `iteration` will write again."""
    for later in reversed(folder.checkpoints()):
        if later > iteration:
            _remove(folder.checkpoint(later))


def prune(folder: RunFolder, keep: int, pending: Collection[int] = ()) -> None:
    """Remove incomplete checkpoints, and all but the newest `keep`, the best, and those `pending` evaluation."""
    # choose the best after `pending` was determined: a checkpoint that has been evaluated meanwhile may be the best now
    best = _best_to_keep(folder)
    for iteration in folder.checkpoints()[:-keep]:
        if iteration not in pending and iteration != best:
            _remove(folder.checkpoint(iteration))
    for aside in (folder.path / "checkpoints").glob(".*.partial"):
        _delete(aside)


def _best_to_keep(folder: RunFolder) -> int | None:
    """Return the iteration of the best checkpoint, as `best_checkpoint` does, but without reading all metrics; None if there is none.

    As the best one is kept every time, it is the best of all that were written.
    """
    best, checkpoints = read_best(folder), folder.checkpoints()
    if best is not None and best.iteration in checkpoints:
        return best.iteration
    means = [(mean, number) for number in checkpoints if (mean := return_at(folder.checkpoint(number))) is not None]
    return max(means)[1] if means else None


def _aside(checkpoint: Path) -> Path:
    return checkpoint.with_name(f".{checkpoint.name}.partial")


def _remove(checkpoint: Path) -> None:
    aside = _aside(checkpoint)
    _delete(aside)
    checkpoint.rename(aside)  # a kill must not leave an incomplete folder under this name
    _delete(aside)


def _delete(path: Path) -> None:
    """Delete a folder, or a symbolic link in its place, if it exists. What can't be deleted is reported when its name is used again."""
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


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

    def __init__(self, path: Path) -> None:
        """Compare all files with their hashes.

        Raises CheckpointDamaged, naming the file and the newest checkpoint of the run that is whole, and ValueError for a newer version.
        """
        self.path = path
        try:
            self.state = verify(path)
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


def pack(state: Mapping[str, Tensor]) -> bytes:
    """Serialize a state in the safetensors format."""
    # clones: parameters are views of one buffer, and safetensors requires tensors that own their memory
    return save({name: tensor.detach().clone().contiguous() for name, tensor in state.items()})


def _is_finite(value: object) -> bool:
    return is_whole_number(value) or (isinstance(value, float) and math.isfinite(value))


def _write(path: Path, content: bytes) -> None:
    with create_file(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
