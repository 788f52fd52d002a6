"""Memory that ranks of one host share, and its cores. Importing this does not import PyTorch, so the launcher stays light."""

import os

__all__ = ["ARENA", "LINE", "create_memory", "usable_cores"]

LINE = 64
"""Bytes of a processor's cache line."""
ARENA = 64 << 20
"""Bytes of an arena. Pages that are never touched take no memory; larger payloads go in pieces."""


def create_memory(size: int) -> int:
    """A file descriptor of zeroed memory for `size` ranks, that no folder names: it goes when the last process that holds it
    goes, whichever way that ends. Raises OSError where the system has no such memory.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no anonymous memory files")
    memory = os.memfd_create("lockstep")
    os.ftruncate(memory, size * LINE + 2 * ARENA)
    return memory


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
