"""Reading and writing files in folders that others may have made: run folders, caches, downloads.

Such a folder may hold anything under the name of a file: a FIFO or a device, from which a read never returns, a file of any size, or a
symbolic link to a file elsewhere. So everything that is read is a regular file of bounded size, and everything that is written is a new
file under a random name, which then replaces the old one.
"""

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

__all__ = [
    "CONFIG_LIMIT",
    "METRICS_LIMIT",
    "TEXT_LIMIT",
    "WEIGHTS_LIMIT",
    "create_file",
    "make_folder",
    "open_regular",
    "open_to_append",
    "read_file",
    "read_lines",
    "remove_leftovers",
    "sync_file",
    "sync_folder",
    "write_atomically",
]

TEXT_LIMIT = 2**21
"""Largest size in bytes of a file with a summary."""
CONFIG_LIMIT = 2**17
"""Largest size in bytes of a config that a user wrote: parsing YAML takes some 10 seconds per megabyte."""
WEIGHTS_LIMIT = 4_000_000_000
"""Largest size in bytes of a file with tensors. The weights of a large network with images have some ten million bytes."""
METRICS_LIMIT = 2**32
"""Largest size in bytes of a file with a line per iteration."""
_LINE_LIMIT = 2**20
"""Largest size in bytes of a line. Lines of metrics have some thousand bytes."""
_BLOCK = 2**20
"""Bytes that are read at a time of a file that is larger than its size says."""
_ABANDONED_AFTER = 600.0
"""Seconds after which a temporary file has no writer any more."""


def open_regular(path: Path, limit: int) -> BinaryIO:
    """Open a file for reading. Raises OSError if it is missing, not a regular file, or larger than `limit` bytes."""
    # O_NONBLOCK: opening a FIFO without a writer would wait for one
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EPERM, "it is not a regular file", str(path))
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, more than {limit:,}", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, limit: int = TEXT_LIMIT) -> bytes:
    """Return the content of a file. Raises OSError as `open_regular` does."""
    with open_regular(path, limit) as file:
        # `read` allocates what it is asked for before it reads
        expected = min(limit, os.fstat(file.fileno()).st_size)
        content = file.read(expected + 1)
        while len(content) <= limit and (more := file.read(_BLOCK)):
            content += more
    if len(content) > limit:  # a file of /proc has no size, and another one may have grown
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    return content


def read_lines(path: Path) -> Iterator[bytes]:
    """Iterate over the lines of a file, with their line feeds. A line that is too long comes in pieces. Raises OSError as `open_regular` does."""
    with open_regular(path, METRICS_LIMIT) as file:
        while line := file.readline(_LINE_LIMIT):
            yield line


def create_file(path: Path) -> BinaryIO:
    """Create a file and open it for writing. Raises FileExistsError if there is anything under its name, also a symbolic link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def open_to_append(path: Path) -> int:
    """Open a file for appending, and create it if it is missing. Return its descriptor. Raises OSError for anything but a regular file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EPERM, "it is not a regular file", str(path))
    return descriptor


def write_atomically(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file atomically, by renaming a temporary file, so that it also survives a loss of power.

    A symbolic link under the name of the file is replaced, not followed. Raises OSError if the file can't be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with create_file(temporary) as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # a failed write has none, and the temporary name would mean nothing to the user
        error.filename2 = None
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()
    sync_folder(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files in `folder` that `write_atomically` left when its process was killed."""
    for temporary in folder.glob(".*.partial"):
        with suppress(OSError):  # a folder, or a file that is gone
            if time.time() - temporary.lstat().st_mtime > _ABANDONED_AFTER:
                temporary.unlink()


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on disk. Raises OSError for a symbolic link."""
    _sync(path, os.O_NOFOLLOW | os.O_NONBLOCK)


def sync_folder(path: Path) -> None:
    """Wait until the entries of a folder are on disk; before that, a loss of power may undo a creation or renaming."""
    _sync(path, os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder in an existing one, unless it exists. Raises OSError, also for a symbolic link, which may lead elsewhere."""
    with suppress(FileExistsError):
        path.mkdir()
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", str(path))
