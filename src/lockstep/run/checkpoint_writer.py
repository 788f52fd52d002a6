"""Writing checkpoints, and removing those that are not kept."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread

import torch
from safetensors.torch import save
from torch import Tensor

from lockstep.files import create_file, make_folder, sync_file, sync_folder
from lockstep.group.group import Group
from lockstep.group.texts import exchange_texts
from lockstep.messages import print_warning
from lockstep.processes.heartbeat import keep_alive
from lockstep.run.checkpoint import CheckpointFailed
from lockstep.run.evaluations import read_best
from lockstep.run.folder import FolderLost, RunFolder
from lockstep.run.manifest import STATE, encode_state, return_at

__all__ = [
    "CheckpointWriter",
    "check_folder",
    "pack",
    "remove_checkpoints_after",
    "remove_old_checkpoints",
]

_BLOCK = 2**24
"""Bytes that are written between two heartbeats."""
_POLL = 0.2
"""Seconds between two heartbeats while a rank waits for the disk."""
_WARN_AFTER = 10.0
"""Seconds of such waiting after which a warning is printed."""


class CheckpointWriter:
    """Writer of the checkpoints of one run. Every rank has one, and all ranks call the same methods in the same order.

    Training continues while rank 0 completes a checkpoint in a thread. It waits for the disk (fsync), and gives the folder its name at the
    end: a folder with its final name is a complete checkpoint, also after a power failure.
    """

    def __init__(self, folder: RunFolder, group: Group) -> None:
        self._folder = folder
        self._group = group
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self.iteration = 0
        """Iteration of the checkpoint that is being completed; 0: none."""

    def write(
        self,
        iteration: int,
        states: Mapping[str, Mapping[str, Tensor]],
        counters: Mapping[str, object],
        flush_metrics: Callable[[], None] = lambda: None,
        sync_metrics: Callable[[], None] = lambda: None,
        remove_old: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the `states` of all ranks, tensors by file name and tensor name, and begin to complete the checkpoint, with `counters`.

        `wait` must have returned since the last call. Rank 0 first calls `flush_metrics`. Its thread calls `sync_metrics` first, and
        `remove_old` once the checkpoint has been renamed; OSErrors of `remove_old` are ignored. Raises CheckpointFailed on all ranks if one of them can't write, FolderLost on all ranks
        if the run folder is gone, and RankLost if a rank does not take part in time.
        """
        folder, final = self._folder, self._folder.checkpoint(iteration)
        temporary, own_hashes, hashes = _aside(final), dict[str, str](), dict[str, str]()

        def create() -> None:
            folder.check_present()
            flush_metrics()
            make_folder(final.parent)
            _delete(temporary)
            temporary.mkdir()

        def write() -> None:
            for name, state in states.items():
                file, content = f"{name}.safetensors", pack(state)
                _write(temporary / file, content)
                own_hashes[file] = hashlib.sha256(content).hexdigest()

        def complete() -> None:
            try:
                sync_metrics()
                _complete(folder, final, {"iteration": iteration, **counters}, hashes)
                with suppress(OSError):  # the next checkpoint reports that the folder can't be written
                    remove_old()
            except Exception as error:
                self._error = error
                _delete(temporary)

        try:
            _run_on_all_ranks(self._group, folder, create if self._group.rank == 0 else lambda: None)
            _run_on_all_ranks(self._group, folder, write)
            for text in exchange_texts(self._group, json.dumps(own_hashes), "checkpoint"):
                hashes.update(json.loads(text))
        except (CheckpointFailed, FolderLost):
            if self._group.rank == 0:
                _delete(temporary)  # it takes space on a full disk
            raise
        self.iteration = iteration
        if self._group.rank == 0:
            self._thread = Thread(target=complete, name="checkpoint")
            self._thread.start()

    def wait(self) -> None:
        """Wait until the last checkpoint is complete. Raises CheckpointFailed or FolderLost on all ranks if it can't be completed."""
        self.iteration = 0
        _run_on_all_ranks(self._group, self._folder, self.close)

    def close(self) -> None:
        """Wait for the thread of this rank. Raises the error that has ended it: OSError or FolderLost."""
        thread, self._thread = self._thread, None
        polls = 0
        while thread is not None and thread.is_alive():
            thread.join(_POLL)
            keep_alive()
            polls += 1
            if polls == _WARN_AFTER / _POLL:
                print_warning(f"{self._folder}: the disk is slow: waiting for a checkpoint to be written")
        error, self._error = self._error, None
        if error is not None:
            raise error


def _complete(folder: RunFolder, final: Path, counters: Mapping[str, object], hashes: Mapping[str, str]) -> None:
    """Add state.json to the files of a checkpoint, wait until all are on disk, and give the folder its name.

    `hashes` are those of the files of all ranks, which rank 0 can't list: a network file system may hide for a while what other hosts have
    written. Such a file is on the server, because its rank has closed it.
    """
    temporary = _aside(final)
    _write(temporary / STATE, encode_state(counters, dict(sorted(hashes.items()))))
    for name in hashes:
        with suppress(FileNotFoundError):
            sync_file(temporary / name)
    sync_file(temporary / STATE)
    sync_folder(temporary)
    folder.check_present()
    _delete(final)
    temporary.rename(final)
    sync_folder(final.parent)
    sync_folder(folder.path)  # the first checkpoint has created a folder in it


def _run_on_all_ranks(group: Group, folder: RunFolder, step: Callable[[], None]) -> None:
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
        raise FolderLost(folder)
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
    _run_on_all_ranks(group, folder, folder.check_present if group.rank == 0 else lambda: None)


def remove_checkpoints_after(folder: RunFolder, iteration: int) -> None:
    """Remove the checkpoints of later iterations, which a run that resumes from `iteration` will write again."""
    for later in reversed(folder.checkpoints()):
        if later > iteration:
            _remove(folder.checkpoint(later))


def remove_old_checkpoints(folder: RunFolder, keep: int, pending: Collection[int] = ()) -> None:
    """Remove incomplete checkpoints, and all but the newest `keep`, the best, and those `pending` evaluation."""
    # choose the best after `pending` was determined: a checkpoint that has been evaluated meanwhile may be the best now
    best = _best_to_keep(folder)
    for iteration in folder.checkpoints()[:-keep]:
        if iteration not in pending and iteration != best:
            _remove(folder.checkpoint(iteration))
    for temporary in (folder.path / "checkpoints").glob(".*.partial"):
        _delete(temporary)


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
    temporary = _aside(checkpoint)
    _delete(temporary)
    checkpoint.rename(temporary)  # a kill must not leave an incomplete folder under this name
    _delete(temporary)


def _delete(path: Path) -> None:
    """Delete a folder, or a symbolic link in its place, if it exists. What can't be deleted is reported when its name is used again."""
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def pack(state: Mapping[str, Tensor]) -> bytes:
    """Serialize a state in the safetensors format."""
    # clones: parameters are views of one buffer, and safetensors requires tensors that own their memory
    return save({name: tensor.detach().clone().contiguous() for name, tensor in state.items()})


def _write(path: Path, content: bytes) -> None:
    view = memoryview(content)
    with create_file(path) as file:
        for start in range(0, len(content), _BLOCK):
            file.write(view[start : start + _BLOCK])
            keep_alive()
