"""Meeting the other ranks, and threads."""

import os
import sys
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from lockstep.group.group import Group, RankLost
from lockstep.group.network import NetworkGroup, share_host
from lockstep.group.shared import SharedMemoryGroup
from lockstep.group.solo import Solo
from lockstep.runtime.meeting import FileMeeting
from lockstep.runtime.place import Place
from lockstep.runtime.settings import RuntimeConfig

__all__ = ["join", "limit_threads"]


def join(place: Place, config: RuntimeConfig) -> Group:
    """Meets the other ranks; the group is the fastest that the backend allows. Raises RankLost if they do not come."""
    if place.size == 1:
        return Solo()
    if place.memory is not None:
        return SharedMemoryGroup(place.memory, place.rank, place.size, config.timeout)
    network = _meet(place, config.timeout)
    return network if config.backend == "gloo" else share_host(network, config.timeout)


def _meet(place: Place, timeout: float) -> NetworkGroup:
    if place.on_one_host:  # nothing listens to other hosts
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    if not place.meeting.startswith("file://"):
        return NetworkGroup("gloo", place.rank, place.size, timeout, place.meeting)
    meeting = FileMeeting(Path(place.meeting.removeprefix("file://")), place.rank, place.size)
    try:
        return NetworkGroup("gloo", place.rank, place.size, timeout, f"file://{meeting.meet(timeout)}")
    except TimeoutError as error:
        raise RankLost(error.args[0], "start", error.args[1]) from None


def limit_threads(threads: int) -> None:
    """Threads inside PyTorch's and NumPy's operations: fixed, because another number may round sums differently."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)
