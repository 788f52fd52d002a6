"""Runs in a folder as the dashboard shows them, and the files of theirs that it reads.

Run folders may be broken or come from others. So every file is checked before it is read: it must be a regular file of
a reasonable size, reached without a symbolic link that leads out of the folder. Requests name runs and videos by keys
of what was found here, never by paths.
"""

import dataclasses
import hashlib
import os
import re
import time
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from lockstep.run.evaluations import BEST, EVALUATIONS
from lockstep.run.folder import RunFolder
from lockstep.telemetry.listing import ListedRun, list_run, run_folders
from lockstep.telemetry.status import number

__all__ = ["Runs", "key", "signature", "videos"]

_LIMITS = {
    "config.json": 2**22,
    "starts.jsonl": 2**24,
    "pruned.json": 2**16,
    BEST: 2**16,
    "metrics.jsonl": None,
    EVALUATIONS: None,
}
"""Files that are read, with their largest size in bytes. None: the file is read in blocks."""
_MAX_VIDEOS = 100

Signature = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and time of modification of every file; None for one that does not exist."""


class _Listed(NamedTuple):
    state: tuple[Signature, bool | None]
    run: ListedRun
    written: float
    """Time of the last write, in seconds since the epoch."""


class Runs:
    """All runs in a folder. Files of a run are read again only when they have changed."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._listed: dict[Path, _Listed] = {}
        self._paths: dict[str, Path] = {}

    def rows(self) -> list[dict[str, object]]:
        """Return one row per run, as a tree for JSON: its `key`, what `lockstep runs` lists, and a `version` that changes with its files."""
        paths = run_folders(self.root)
        self._listed = {path: listed for path in paths if (listed := self._listed.get(path)) is not None}
        self._paths = {key(str(path.relative_to(self.root))): path for path in paths}
        return [{"key": name, **self._row(path)} for name, path in self._paths.items()]

    def path(self, name: str) -> Path | None:
        """Return the folder of the run with the key `name`, None if `rows` has found none."""
        return self._paths.get(name)

    def _row(self, path: Path) -> dict[str, object]:
        shown = _printable(path.relative_to(self.root))
        try:
            listed, version = self._read(path)
        except (OSError, ValueError) as error:
            return {"path": shown, "state": "broken", "why": printable_error(error), "version": ""}
        fields = {
            name: number(value) if isinstance(value, float) else value
            for name, value in dataclasses.asdict(listed.run).items()
        }
        texts = {"path": shown, "env": _printable(listed.run.env), "why": _printable(listed.run.why)}
        return fields | texts | {"age": max(0.0, time.time() - listed.written), "version": version}

    def _read(self, path: Path) -> tuple[_Listed, str]:
        found = signature(self.root, path)
        state, listed = (found, RunFolder(path).in_use()), self._listed.get(path)
        if listed is None or listed.state != state:
            run = list_run(path)
            listed = self._listed[path] = _Listed(state, run, time.time() - run.age)
        return listed, key(repr(found))


def signature(root: Path, path: Path) -> Signature:
    """Return inode, size and time of modification of the files of the run in `path`.

    Raises ValueError if the run or a file of it must not be read, OSError if that cannot be determined.
    """
    if not path.resolve().is_relative_to(root):
        raise ValueError(f"{path.name} is a symbolic link that leads out of {root.name}")
    found: list[tuple[int, int, int] | None] = []
    for name, limit in _LIMITS.items():
        status = _status(path / name)
        if status is not None and not S_ISREG(status.st_mode):
            raise ValueError(f"{name} is not a regular file")
        if status is not None and limit is not None and status.st_size > limit:
            raise ValueError(f"{name} has {status.st_size:,} bytes: at most {limit:,} are read")
        found.append(None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns))
    status = _status(path / "videos")
    return (*found, None if status is None else (status.st_ino, 0, status.st_mtime_ns))


def videos(path: Path) -> dict[str, Path]:
    """Return the videos of a run by key, the newest first, at most 100: regular files `videos/*.mp4`."""
    folder = path / "videos"
    if folder.is_symlink():
        return {}
    files = [
        (status.st_mtime_ns, file)
        for file in folder.glob("*.mp4")
        if (status := _status(file)) and S_ISREG(status.st_mode)
    ]
    return {key(file.name): file for _, file in sorted(files, reverse=True)[:_MAX_VIDEOS]}


def key(name: str) -> str:
    """Return a short name for use in addresses. File names may have any bytes."""
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:16]


def printable_error(error: Exception) -> str:
    """Return an error as one line of valid Unicode."""
    return " ".join(_printable(str(error)).split())


def _printable(name: Path | str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", str(name))


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
