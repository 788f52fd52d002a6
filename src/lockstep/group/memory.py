"""Memory that ranks of one host share, and its cores. Importing this does not import PyTorch, so the launcher stays light."""

import mmap
import os

__all__ = ["LINE", "Memory", "create_memory", "usable_cores"]

LINE = 64
"""Bytes of a processor's cache line."""


def create_memory(size: int) -> int:
    """A file descriptor of zeroed memory for `size` ranks, that no folder names: it goes when the last process that holds it
    goes, whichever way that ends. Raises OSError where the system has no such memory.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no anonymous memory files")
    file = os.memfd_create("lockstep")
    os.ftruncate(file, size * LINE)
    return file


class Memory:
    """Hands out one region of the shared file after the other.

    Every rank asks for the same sizes in the same order, so what they get is the same memory. Pages that are never touched
    take no memory.
    """

    def __init__(self, file: int) -> None:
        """`file` is a descriptor of `create_memory`; it is closed by `close`."""
        os.set_inheritable(file, False)
        self._file = file
        self._end = 0

    def region(self, size: int) -> mmap.mmap:
        """The next `size` bytes, zeroed unless another rank has written them, at the beginning of a page."""
        start = self._end
        self.skip(size)
        # Ranks do this in any order, and a file cut to a length could be cut shorter than another rank has made it. This
        # byte is padding, so that it is zero in any case.
        os.pwrite(self._file, b"\0", self._end - 1)
        return mmap.mmap(self._file, self._end - start, offset=start)

    def skip(self, size: int) -> None:
        """Passes over the next `size` bytes, which are for other ranks."""
        page = mmap.ALLOCATIONGRANULARITY
        self._end += (size // page + 1) * page

    def close(self) -> None:
        """No further regions. Those that were handed out stay until nothing refers to them."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
