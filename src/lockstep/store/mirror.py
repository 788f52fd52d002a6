"""Copying a run folder to object storage while it is written.

The objects of a checkpoint are uploaded before its state.json, which has their hashes, and after the metrics of its iterations. Its
state.json is deleted before the other objects. So a checkpoint that has a state.json in the storage is complete, and has its metrics,
whenever the process is killed.

An upload may take longer than training keeps a checkpoint. So its files are linked first, and the newest checkpoint in the storage is
kept there until a newer one is complete, although training has removed it.
"""

import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lockstep.files import TEXT_LIMIT, read_file, write_atomically
from lockstep.run.folder import FolderLost, RunFolder
from lockstep.run.manifest import STATE
from lockstep.store.remote import RemoteRun, StoreFailed

__all__ = ["OWNER", "STORED", "Mirror", "delete_after", "newest_stored", "take_over"]

OWNER = "owner.txt"
"""Object with the random token of the process that writes the run in the storage."""
STORED = "stored.txt"
"""File in the run folder with the iteration of the newest checkpoint in the storage."""
_LINKS = ".uploading"
"""Folder in the run folder with links to the files of the checkpoints that are being uploaded."""
_PATTERNS = ("*.json", "*.jsonl", "tb/*", "videos/*.mp4", "wandb/lockstep.json", "trackio/lockstep.json")
"""Files that are copied, besides checkpoints: files that a resumed run appends to or reads, and metrics, videos and TensorBoard files."""

_BYTES_PER_SECOND = 2**20
"""Most bytes per second of a file that grows, which is uploaded as a whole: storage like S3 can't append. Checkpoints are not counted."""


class Mirror:
    """Copy of one run folder in object storage. The newest process that calls `claim` is the only one whose `update` writes."""

    def __init__(self, folder: RunFolder, remote: RemoteRun) -> None:
        self._folder = folder
        self._remote = remote
        self._token = secrets.token_hex(16).encode()
        self._uploaded: dict[Path, tuple[int, int]] = {}
        self._uploaded_at: dict[Path, float] = {}
        self._stored: set[int] = set()
        self._states: dict[int, bytes] = {}
        self._newest = 0

    def claim(self) -> None:
        """Take over the run in the storage from any other process, and find out what is there. Raises StoreFailed."""
        take_over(self._remote, self._token)
        found = [
            path for path in map(Path, self._remote.sizes()) if re.fullmatch(r"checkpoints/\d{8}", str(path.parent))
        ]
        self._stored = {int(path.parent.name) for path in found}
        whole = [int(path.parent.name) for path in found if path.name == STATE]
        self._states = {number: self._remote.read(_name(number, STATE), TEXT_LIMIT) for number in whole}

    def update(self, everything: bool = True) -> None:
        """Copy what has changed since the last call. Without `everything`, large files that grow wait for the next checkpoint, or for some time.

        Raises StoreFailed if the storage can't be used, if the run folder is gone, or if another process has claimed the run; the next call
        tries again.
        """
        present = self._checkpoints()
        missing = [number for number in present if self._states.get(number) != self._state_of(number)]
        self._newest = max([self._newest, *{*present} - {*missing}])
        changed = [path for path in self._changed_files() if everything or missing or self._may_upload(path)]
        if not (missing or changed or self._removable(present)):
            return  # requests cost money
        self._check_owner()
        with self._linked(missing) as checkpoints:
            for number, links in checkpoints.items():
                self._upload_tensors(number, links)
            for path in changed:
                self._upload_file(path)
            for number, links in checkpoints.items():
                self._upload_state(number, links)
        for number in self._removable(self._checkpoints()):
            self._delete(number)
        write_atomically(self._folder.path / STORED, f"{self._newest}\n".encode())

    def _checkpoints(self) -> list[int]:
        """Return the checkpoints of the folder. Raises StoreFailed if it is gone: none of its checkpoints has been removed then."""
        found = self._folder.checkpoints()
        try:
            self._folder.check_present()
        except FolderLost as error:
            raise StoreFailed(str(error)) from None
        return found

    def _check_owner(self) -> None:
        if self._remote.read(OWNER, TEXT_LIMIT) != self._token:
            raise StoreFailed(f"{self._remote.address}: another process has taken over this run")

    def _state_of(self, number: int) -> bytes:
        """Return the state.json of a checkpoint of the folder; empty if it is gone."""
        with suppress(OSError):
            return read_file(self._folder.checkpoint(number) / STATE)
        return b""

    @contextmanager
    def _linked(self, numbers: Sequence[int]) -> Iterator[Mapping[int, Path]]:
        """Yield folders with links to the files of checkpoints, by iteration, without the checkpoints that training has removed meanwhile."""
        root, linked = self._folder.path / _LINKS, {}
        shutil.rmtree(root, ignore_errors=True)  # of a killed process
        try:
            for number in numbers:
                with suppress(FileNotFoundError):
                    linked[number] = _link_files(self._folder.checkpoint(number), root)
            yield linked
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def _upload_tensors(self, number: int, links: Path) -> None:
        """Upload the files of a checkpoint except for state.json."""
        self._delete(number)  # what a killed process has left, or that of a run that went on from an earlier checkpoint
        self._stored.add(number)
        for path in sorted(links.iterdir()):
            if path.name != STATE:
                self._remote.upload(path, _name(number, path.name))

    def _upload_state(self, number: int, links: Path) -> None:
        self._check_owner()
        state = read_file(links / STATE)
        self._remote.write(_name(number, STATE), state)
        self._states[number] = state
        self._newest = max(self._newest, number)

    def _other_files(self) -> Iterator[Path]:
        for pattern in _PATTERNS:
            files = sorted(self._folder.path.glob(pattern))
            yield from (path for path in files if path.is_file() and not path.is_symlink())

    def _changed_files(self) -> Iterator[Path]:
        for path in self._other_files():
            try:
                version = _version(path)
            except FileNotFoundError:  # a video may be removed meanwhile
                continue
            if self._uploaded.get(path) != version:
                yield path

    def _upload_file(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            version = _version(path)  # before the upload, during which the file may grow
            self._remote.upload(path, path.relative_to(self._folder.path).as_posix())
            self._uploaded[path], self._uploaded_at[path] = version, time.monotonic()

    def _may_upload(self, path: Path) -> bool:
        """Return True if uploading a file again now keeps to `_BYTES_PER_SECOND`."""
        size, at = self._uploaded.get(path, (0, 0))[-1], self._uploaded_at.get(path)
        return at is None or time.monotonic() - at >= size / _BYTES_PER_SECOND

    def _removable(self, present: Sequence[int]) -> Collection[int]:
        """Return the stored checkpoints that may be deleted: those that are neither `present` nor the newest complete one. Empty while none is known to be complete."""
        return self._stored - {*present, self._newest} if self._newest else ()

    def _delete(self, number: int) -> None:
        """Delete a checkpoint in the storage, its state.json first."""
        if number not in self._stored:
            return
        self._states.pop(number, None)
        _delete(self._remote, [name for name in self._remote.sizes() if Path(name).parent == Path(_name(number))])
        self._stored.discard(number)


def take_over(remote: RemoteRun, token: bytes | None = None) -> None:
    """Replace the owner of the run, so that processes that upload it stop. `token` is that of the new owner; None: it takes over later. Raises StoreFailed."""
    remote.write(OWNER, token or secrets.token_hex(16).encode())


def delete_after(remote: RemoteRun, iteration: int) -> None:
    """Delete the checkpoints of later iterations. Raises StoreFailed."""
    found = [Path(name) for name in remote.sizes() if name.startswith("checkpoints/")]
    later = [path for path in found if path.parent.name.isdecimal() and int(path.parent.name) > iteration]
    _delete(remote, [path.as_posix() for path in later])


def _delete(remote: RemoteRun, names: Sequence[str]) -> None:
    """Delete objects of checkpoints, those that make them complete first."""
    for name in sorted(names, key=lambda name: not name.endswith(f"/{STATE}")):
        remote.delete(name)


def newest_stored(folder: RunFolder) -> int:
    """Return the iteration of the newest checkpoint that `Mirror.update` has stored; 0 if there is none."""
    with suppress(OSError, ValueError):
        return int(read_file(folder.path / STORED))
    return 0


def _name(number: int, file: str = "") -> str:
    return f"checkpoints/{number:08d}/{file}"


def _link_files(checkpoint: Path, root: Path) -> Path:
    """Link the files of a checkpoint in a new folder in `root`. Raises FileNotFoundError if the checkpoint or the folder of `root` is gone."""
    root.mkdir(exist_ok=True)  # without its parents, which training may have lost
    links = root / checkpoint.name
    links.mkdir()
    for path in checkpoint.iterdir():
        if path.is_symlink():
            continue
        try:
            os.link(path, links / path.name)
        except FileNotFoundError:
            raise
        except OSError:  # a file system without links
            shutil.copyfile(path, links / path.name)
    return links


def _version(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_mtime_ns, status.st_size
