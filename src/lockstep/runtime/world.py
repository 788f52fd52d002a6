"""All ranks' torch.distributed process group: how it comes about and what it leaves behind."""

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from lockstep.group.group import RankLost
from lockstep.group.network import NetworkGroup
from lockstep.runtime.checks import shares_memory
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.rendezvous import FileMeeting
from lockstep.runtime.settings import RuntimeConfig

__all__ = ["World"]

_FILE = "file://"
_SUBGROUPS: list[dist.ProcessGroup] = []
"""Kept to the end of the process. When DistributedDataParallel is the last to let go of its group, it waits for the group's thread
while it holds Python's lock, and the thread may be about to ask for that: a deadlock, seen in one process of 50."""


class World:
    """Ranks of one host that share memory can do without; then it is made when something first needs it."""

    def __init__(self, place: RankInfo, config: RuntimeConfig) -> None:
        self.place = place
        self.config = config
        self._network: NetworkGroup | None = None
        self._files: FileMeeting | None = None

    def meet(self) -> NetworkGroup:
        """The group of all ranks. Every rank calls it; the first call waits for them.

        Raises RankLost if they do not come, and ValueError if nothing can be written where they are to meet.
        """
        if self._network is None:
            self._network = self._join()
        return self._network

    def _join(self) -> NetworkGroup:
        place, timeout = self.place, self.config.timeout
        if place.on_one_host:  # nothing listens to other hosts
            loopback = "lo" if sys.platform == "linux" else "lo0"
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
        address = place.meeting
        if address.startswith(_FILE):
            self._files = FileMeeting(Path(address.removeprefix(_FILE)), place.rank, place.size)
            try:
                address = f"{_FILE}{self._files.meet(timeout)}"
            except TimeoutError as error:
                raise RankLost(error.args[0], "start", error.args[1]) from None
            except OSError as error:
                raise ValueError(f"runtime.rendezvous: the ranks can't meet at {address}: {error}") from None
        backend = self.config.backend if self.config.backend in ("nccl", "mpi") else "gloo"
        return _kind_of_group(self.config)(backend, place.rank, place.size, timeout, address)

    def subgroup(self, members: Sequence[int], backend: str) -> dist.ProcessGroup | None:
        """A process group of these ranks; None for a rank that is not among them. Every rank calls it, in the same order."""
        self.meet()
        timeout = timedelta(seconds=self.config.timeout)
        made = dist.new_group(list(members), timeout=timeout, backend=backend)
        if self.place.rank not in members:
            return None
        assert isinstance(made, dist.ProcessGroup)
        _SUBGROUPS.append(made)
        return made

    def close(self, failed: bool) -> None:
        """Leaves the process group, and removes the files of the meeting when all is over."""
        if self._network is not None and not failed and dist.is_initialized():  # with a rank lost it might wait for it
            self._network.close()
        if self._files is not None and (failed or self.place.rank == 0):
            self._files.clear()


def _kind_of_group(config: RuntimeConfig) -> type[NetworkGroup]:
    if config.kind != "fabric" or shares_memory(config):
        return NetworkGroup
    from lockstep.runtime.fabric import FabricGroup

    return FabricGroup
