"""Load of this machine, read from /proc."""

import os
from pathlib import Path

from lockstep.processes.host_name import host_name

__all__ = ["machine_load"]

_PROC = Path("/proc")
_IDLE = (3, 4)
"""Positions of the idle times (idle, iowait) in the first line of /proc/stat."""
_COUNTED = 8
"""Number of times in that line, up to `steal`; the next ones are included in others (proc_stat(5))."""


def machine_load(proc: Path = _PROC) -> dict[str, object]:
    """Return the counters of CPU time and the memory of this machine, as a tree for JSON; without /proc, only host and cores.

    `cpu` has the busy time and the whole time of all cores since boot, in clock ticks: the load is the ratio of two
    differences. `memory` has the bytes in use, which cannot be freed without swapping, and all bytes.
    """
    load: dict[str, object] = {"host": host_name(), "cores": os.cpu_count()}
    try:
        times = [int(word) for word in (proc / "stat").read_text().split("\n", 1)[0].split()[1:][:_COUNTED]]
        sizes = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())
        total, available = (1024 * int(sizes[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, LookupError):
        return load
    whole = sum(times)
    return load | {"cpu": [whole - sum(times[index] for index in _IDLE), whole], "memory": [total - available, total]}
