"""The torch.distributed process group of all ranks: how it is created and closed."""

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from lockstep.group.group import RankLost
from lockstep.group.network import NetworkGroup
from lockstep.group.store import is_loopback
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.rendezvous import INHERITED, FileRendezvous
from lockstep.runtime.settings import RuntimeConfig

__all__ = ["World"]

_FILE = "file://"
_SUBGROUPS: list[dist.ProcessGroup] = []
"""References that keep process groups until the process ends. If DistributedDataParallel holds the last reference to its group, its
destructor waits for the group's thread while it holds Python's lock, and that thread may be waiting for the lock: a deadlock, seen in
one process of 50."""


class World:
    """All ranks of a run. Connections are opened on first use, because ranks that share memory may not need any."""

    def __init__(
        self, rank_info: RankInfo, config: RuntimeConfig, group_class: type[NetworkGroup] = NetworkGroup
    ) -> None:
        """Store the arguments. `group_class` is the class of the group that `connect` creates."""
        self.rank_info = rank_info
        self.config = config
        self._group_class = group_class
        self._network: NetworkGroup | None = None
        self._files: FileRendezvous | None = None

    def connect(self) -> NetworkGroup:
        """Return the group of all ranks; the first call, by every rank, waits for the others.

        Raises RankLost if not all ranks connect in time, and ValueError if the files of the rendezvous can't be written.
        """
        if self._network is None:
            self._network = self._create_group()
        return self._network

    def _create_group(self) -> NetworkGroup:
        rank_info, timeout = self.rank_info, self.config.timeout
        address, secret = rank_info.rendezvous, rank_info.secret
        if rank_info.on_one_host or is_loopback(address):  # do not listen to other hosts
            loopback = "lo" if sys.platform == "linux" else "lo0"
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
        if address.startswith(INHERITED):
            file = int(address.removeprefix(INHERITED))
            os.set_inheritable(file, False)
            address = f"{_FILE}/proc/self/fd/{file}"  # opens the file again, although it has no name in any folder
        elif address.startswith(_FILE):
            self._files = FileRendezvous(Path(address.removeprefix(_FILE)), rank_info.rank, rank_info.size)
            try:
                result = self._files.wait(timeout)
                address, secret = f"{_FILE}{result.file}", result.secret
            except TimeoutError as error:
                raise RankLost(error.args[0], "start", error.args[1]) from None
            except OSError as error:
                raise ValueError(f"runtime.rendezvous: the ranks can't use {address}: {error}") from None
        backend = self.config.backend if self.config.backend in ("nccl", "mpi") else "gloo"
        return self._group_class(backend, rank_info.rank, rank_info.size, timeout, address, secret)

    def subgroup(self, members: Sequence[int], backend: str) -> dist.ProcessGroup | None:
        """Create a process group of the ranks `members`. Return None on all other ranks.

        Every rank calls it, in the same order.
        """
        self.connect()
        timeout = timedelta(seconds=self.config.timeout)
        process_group = dist.new_group(list(members), timeout=timeout, backend=backend)
        if self.rank_info.rank not in members:
            return None
        assert isinstance(process_group, dist.ProcessGroup)
        _SUBGROUPS.append(process_group)
        return process_group

    def close(self, failed: bool, error: object = None) -> None:
        """Leave the process group and remove the files of the rendezvous. `error` is the reason if this rank has `failed`."""
        if self._network is not None and isinstance(error, RuntimeError) and not isinstance(error, RankLost):
            self._network.report_failure()
        # after a failure, closing the group could wait for a rank that is lost
        if self._network is not None and not failed and dist.is_initialized():
            self._network.close()
        if self._files is not None and (failed or self.rank_info.rank == 0):
            self._files.remove()
