"""Locks of folders, which end with the process that holds them."""

import fcntl
import os
import time
from pathlib import Path

__all__ = ["is_locked", "lock_folder"]

_TRIES, _PAUSE = 3, 0.05


def lock_folder(path: Path) -> int | None:
    """Lock a folder, and return the descriptor whose closing releases the lock; None on a file system without locks.

    Raises BlockingIOError if another process holds the lock.
    """
    for tries in reversed(range(_TRIES)):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if not tries:
                raise
            time.sleep(_PAUSE)  # another process may hold it for a moment, in `is_locked`
        except OSError:  # a file system without locks
            os.close(descriptor)
            return None
        else:
            return descriptor
    raise AssertionError


def is_locked(path: Path) -> bool | None:
    """Return True if a process holds the lock of a folder; None on a file system without locks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    else:
        return False
    finally:
        os.close(descriptor)
