"""Cores that this process may run on."""

import os

__all__ = ["core_numbers", "usable_cores"]


def core_numbers() -> list[int]:
    """Return the cores that this process may run on, ascending."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(core_numbers())
