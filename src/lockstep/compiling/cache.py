"""Cache of compiled libraries: a folder that only the user can write. Every library is checked before it is loaded."""

import fcntl
import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

__all__ = [
    "CacheUnusable",
    "cache_folder",
    "check_folder",
    "clean_up",
    "find_defect",
    "lock_key",
    "release",
    "store",
    "try_lock",
]

_MAX_LIBRARIES = 20
"""Number of libraries that the cache keeps, of 0.2 MB each. The least recently used ones are removed."""
_OTHERS_CAN_WRITE = 0o022
"""Permission bits of the group and of other users."""


class CacheUnusable(OSError):
    """The cache folder can't be written, or other users could plant libraries in it."""


def cache_folder() -> Path:
    """Return the folder of the cache: `LOCKSTEP_CACHE`, else `lockstep` in the user's cache folder."""
    folder = os.environ.get("LOCKSTEP_CACHE")
    return Path(folder) if folder else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lockstep"


def check_folder(folder: Path) -> None:
    """Create the folder if it is missing, and check that no other user can write into it.

    Libraries of the cache are code that runs with the user's permissions. Raises CacheUnusable if the folder can't be created, or if
    another user owns it or can write into it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise CacheUnusable(f"{folder} can't be created ({error.strerror})") from None
    if status.st_uid not in (0, os.geteuid()):
        raise CacheUnusable(f"{folder} belongs to another user")
    if status.st_mode & _OTHERS_CAN_WRITE:
        raise CacheUnusable(f"{folder} is writable by other users (run `chmod go-w {folder}`)")


def find_defect(library: Path) -> str | None:
    """Compare a library with its recorded hash. Return the defect, None if it is intact, "" if there is no such library."""
    try:
        content = library.read_bytes()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"can't be read ({error.strerror})"
    try:
        recorded = json.loads(_record(library).read_text())
    except (OSError, ValueError, RecursionError):
        return "has no readable record of its hash"
    return None if recorded == _description(content) else "does not match its recorded hash"


def store(built: Path, library: Path) -> None:
    """Move a built library into the cache, together with a record of its hash. The caller holds the lock of `library`."""
    record = built.with_suffix(".json")
    record.write_text(json.dumps(_description(built.read_bytes())))
    for path in (built, record):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    # if the process is killed between these steps, the library has no record and is compiled again
    _record(library).unlink(missing_ok=True)
    built.replace(library)
    record.replace(_record(library))
    descriptor = os.open(library.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(library: Path) -> int | None:
    """Take the lock of a library, which one sixteenth of the cache shares. Return its descriptor, None if another build holds the lock.

    The lock is held until `release`, or until this process and its children have ended. Raises CacheUnusable if the lock file can't be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(library.parent / f"lock-{lock_key(library)}", flags, 0o600)
    except OSError as error:
        raise CacheUnusable(f"{library.parent} can't be written ({error.strerror})") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases it if this process ends
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def release(lock: int) -> None:
    """Release a lock, which child processes may have inherited."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def lock_key(library: Path) -> str:
    """Return the first character of a library's name, which all libraries with the same lock have in common."""
    return library.name[0]


def clean_up(library: Path) -> None:
    """Remove the build folders of processes that were killed, and the least recently used libraries above the maximum number.

    Only build folders with the same lock as `library` are removed. The caller holds this lock.
    """
    for abandoned in library.parent.glob(f"building-{lock_key(library)}-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    for old in sorted(library.parent.glob("*.so"), key=_last_use)[:-_MAX_LIBRARIES]:
        old.unlink(missing_ok=True)
        _record(old).unlink(missing_ok=True)


def _last_use(library: Path) -> float:
    """Return the time of the last use; 0 if another process has removed the library."""
    with suppress(OSError):
        return library.stat().st_mtime
    return 0.0


def _record(library: Path) -> Path:
    return library.with_suffix(".json")


def _description(content: bytes) -> dict[str, object]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
