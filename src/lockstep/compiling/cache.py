"""The cache of compiled libraries: a folder that only the user can write, in which each library is checked before it is loaded."""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["CacheUnusable", "cache_folder", "check_folder", "defect", "locked", "share", "store", "tidy"]

_KEPT = 200
"""Libraries in the cache, of 1 to 2 MB each. The least recently used ones are removed."""
_OTHERS_CAN_WRITE = 0o022
_POLL = 0.05
"""Seconds between two attempts to take a lock."""


class CacheUnusable(OSError):
    """The cache folder can't be written, or other users could plant libraries in it."""


def cache_folder() -> Path:
    """The folder of the cache: `LOCKSTEP_CACHE`, else `lockstep` in the user's cache folder."""
    chosen = os.environ.get("LOCKSTEP_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lockstep"


def check_folder(folder: Path) -> None:
    """Create the folder if it is missing. Raises CacheUnusable if that fails, or if another user could write into it.

    A library of the cache is code that runs with the user's rights.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise CacheUnusable(f"{folder} can't be written ({error.strerror})") from None
    if status.st_uid not in (0, os.geteuid()):
        raise CacheUnusable(f"{folder} belongs to another user")
    if status.st_mode & _OTHERS_CAN_WRITE:
        raise CacheUnusable(f"{folder} can be written by other users (`chmod go-w {folder}` prevents it)")


def defect(library: Path) -> str | None:
    """Describe why a library can't be loaded; "" if there is none, None if it is as it was stored."""
    try:
        content = library.read_bytes()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"can't be read ({error.strerror})"
    try:
        expected = json.loads(_record(library).read_text())
    except (OSError, ValueError, RecursionError):
        return "has no readable record of its hash"
    return None if expected == _description(content) else "does not match its recorded hash"


def store(built: Path, library: Path) -> None:
    """Move a library from the folder in which it was built into the cache, with a record of its hash. The caller holds its lock."""
    record = built.with_suffix(".json")
    record.write_text(json.dumps(_description(built.read_bytes())))
    for path in (built, record):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    # a kill in between leaves a library without its record, which is compiled again
    _record(library).unlink(missing_ok=True)
    built.replace(library)
    record.replace(_record(library))
    descriptor = os.open(library.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(library: Path, check: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of this library, which it shares with a sixteenth of the cache. `check` is called while waiting, and may raise.

    Raises CacheUnusable if the folder can't be written.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(library.parent / f"lock-{share(library)}", flags, 0o600)
    except OSError as error:
        raise CacheUnusable(f"{library.parent} can't be written ({error.strerror})") from None
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases it if this process dies
                break
            except BlockingIOError:
                check()
                time.sleep(_POLL)
        yield
    finally:
        os.close(descriptor)


def share(library: Path) -> str:
    """The part of a library's name that libraries with the same lock have in common."""
    return library.name[0]


def tidy(library: Path) -> None:
    """Remove what killed processes that held the same lock have left, and libraries beyond the number that is kept."""
    for left in library.parent.glob(f"building-{share(library)}-*"):
        shutil.rmtree(left, ignore_errors=True)
    for old in sorted(library.parent.glob("*.so"), key=_last_use)[:-_KEPT]:
        old.unlink(missing_ok=True)
        _record(old).unlink(missing_ok=True)


def _last_use(library: Path) -> float:
    """The time of the last use; 0 if another process has removed it."""
    with suppress(OSError):
        return library.stat().st_mtime
    return 0.0


def _record(library: Path) -> Path:
    return library.with_suffix(".json")


def _description(content: bytes) -> dict[str, object]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
