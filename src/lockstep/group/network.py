"""Ranks anywhere, through torch.distributed."""

import os
import socket
import zlib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.group.channel import Channel, Spec
from lockstep.group.group import Clock, Group, RankLost
from lockstep.group.memory import create_memory
from lockstep.group.shared import SharedMemoryGroup

__all__ = ["NetworkGroup", "share_host"]


class NetworkGroup(Group):
    """All ranks of a torch.distributed process group, on its CPU backend."""

    def __init__(self, backend: str, rank: int, size: int, timeout: float, init_method: str = "env://") -> None:
        """Meets the other ranks. `timeout` in seconds bounds the meeting and every exchange.

        Raises RankLost when they do not all come.
        """
        self.rank = rank
        self.size = size
        self.clock = Clock()
        self.counts = (1,) * size
        try:
            dist.init_process_group(backend, init_method, timedelta(seconds=timeout), size, rank)
            self.barrier("start")
        except (RuntimeError, ValueError) as error:
            raise RankLost(self._peer(), "start", _first_line(error)) from error

    def gather(self, parts: Tensor, phase: str) -> Tensor:
        """See `Group.gather`."""
        begun = perf_counter()
        everybody = parts.new_empty(self.size * parts.shape[0], *parts.shape[1:])
        try:
            dist.all_gather_single(everybody, parts.contiguous())
        except RuntimeError as error:
            raise RankLost(self._peer(), phase, _first_line(error)) from error
        self.clock.moved += perf_counter() - begun
        return everybody

    def barrier(self, phase: str) -> None:
        """See `Group.barrier`."""
        begun = perf_counter()
        try:
            dist.barrier()
        except RuntimeError as error:
            raise RankLost(self._peer(), phase, _first_line(error)) from error
        self.clock.waited += perf_counter() - begun

    def split(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        """See `Group.split`."""
        raise NotImplementedError

    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> Channel | None:
        """See `Group.channel`."""
        raise NotImplementedError

    def _peer(self) -> str:
        # gloo does not say which: all that is known is who noticed
        return f"a peer of rank {self.rank} (on host {socket.gethostname()})"

    def close(self) -> None:
        """See `Group.close`."""
        if dist.is_initialized():
            dist.destroy_process_group()


def share_host(group: NetworkGroup, timeout: float) -> Group:
    """Shared memory instead of `group` if all its ranks are on one host and may open each other's memory, else `group`."""
    host = group.gather(torch.tensor([[_host()]]), "start")
    if bool((host != host[0]).any()):
        return group
    owned = _create(group)
    process, number = group.gather(torch.tensor([[os.getpid(), owned]]), "start")[0].tolist()
    memory = owned if group.rank == 0 else _open(f"/proc/{process}/fd/{number}")
    # the file itself, not only its name: in another container the same process id may be somebody else
    opened = group.gather(torch.tensor([_identity(memory)]), "start")
    if bool((opened < 0).any() or (opened != opened[0]).any()):
        return group
    return SharedMemoryGroup(memory, group.rank, group.size, timeout)


def _create(group: NetworkGroup) -> int:
    try:
        return create_memory(group.size) if group.rank == 0 else -1
    except OSError:
        return -1


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR)
    except OSError:
        return -1


def _identity(memory: int) -> list[int]:
    if memory < 0:
        return [-1, -1]
    found = os.fstat(memory)
    return [found.st_dev, found.st_ino]


def _host() -> int:
    boot = Path("/proc/sys/kernel/random/boot_id")
    name = socket.gethostname() + (boot.read_text() if boot.exists() else "")
    return zlib.crc32(name.encode())


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
