"""Shared memory of the ranks of one host. This module does not import PyTorch, so the launcher stays small."""

import mmap
import os

__all__ = ["CACHE_LINE", "RegionAllocator", "create_memory"]

CACHE_LINE = 64
"""Bytes of a processor's cache line."""


def create_memory(size: int) -> int:
    """Create an anonymous memory file for `size` ranks, filled with zeros, and return its file descriptor.

    The file has no name in any folder: the kernel frees it when the last process that holds it ends, however that happens.
    Raises OSError if the system has no anonymous memory files.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no anonymous memory files")
    file = os.memfd_create("lockstep")
    os.ftruncate(file, size * CACHE_LINE)
    return file


class RegionAllocator:
    """Allocator of consecutive regions of a shared file, for ranks that request the same sizes in the same order.

    Untouched pages use no memory.
    """

    def __init__(self, file: int) -> None:
        """Take over `file`, a descriptor from `create_memory`; `close` closes it."""
        os.set_inheritable(file, False)
        self._file = file
        self._end = 0

    def region(self, size: int) -> mmap.mmap:
        """Map the next `size` bytes, starting at a page boundary. They are zero unless another rank has written them."""
        start = self._end
        self.skip(size)
        # Ranks get here in any order, and ftruncate could make the file shorter than another rank has made it. This byte is
        # padding, which is zero in any case.
        os.pwrite(self._file, b"\0", self._end - 1)
        return mmap.mmap(self._file, self._end - start, offset=start)

    def skip(self, size: int) -> None:
        """Skip the next `size` bytes, which other ranks use."""
        page = mmap.ALLOCATIONGRANULARITY
        self._end += (size // page + 1) * page

    def close(self) -> None:
        """Close the file. Regions that were mapped stay valid until nothing refers to them."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
