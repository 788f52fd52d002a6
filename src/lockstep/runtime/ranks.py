"""What a rank needs before it can work: its place among the others, and its threads."""

import os
from dataclasses import dataclass

import torch
from threadpoolctl import threadpool_limits

from lockstep.group.group import Group
from lockstep.group.network import NetworkGroup, share_host
from lockstep.group.shared import SharedMemoryGroup
from lockstep.group.solo import Solo
from lockstep.runtime.settings import RuntimeConfig

__all__ = ["Place", "join", "limit_threads"]


@dataclass(frozen=True)
class Place:
    """Which rank this process is, of how many, and how it meets the others."""

    rank: int
    size: int
    memory: int | None = None
    """File descriptor of shared memory that the launcher passed on; None: by torch.distributed."""
    meeting: str = "env://"
    """torch.distributed's init method."""

    @classmethod
    def from_launcher(cls) -> "Place | None":
        """The place that torchrun (or whatever sets its variables) gave this process; None if there was none.

        `RANK` is the global rank; `LOCAL_RANK` numbers the processes of one host and is not looked at.
        """
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            return None
        return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def join(place: Place, config: RuntimeConfig) -> Group:
    """Meets the other ranks; the group is the fastest that the backend allows. Raises RankLost if they do not come."""
    if place.size == 1:
        return Solo()
    if place.memory is not None:
        return SharedMemoryGroup(place.memory, place.rank, place.size, config.timeout)
    network = NetworkGroup("gloo", place.rank, place.size, config.timeout, place.meeting)
    return network if config.backend == "gloo" else share_host(network, config.timeout)


def limit_threads(threads: int) -> None:
    """Threads inside PyTorch's and NumPy's operations: fixed, because another number may round sums differently."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)
