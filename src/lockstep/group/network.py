"""Ranks anywhere, through torch.distributed."""

import socket
from collections.abc import Sequence
from math import prod
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.group.channel import Channel, LocalChannel, Spec
from lockstep.group.group import Clock, Group
from lockstep.group.host import Host
from lockstep.group.neighbours import find_neighbours
from lockstep.group.shared import SharedMemoryGroup, part_of_host
from lockstep.group.solo import Solo
from lockstep.group.wire import NetworkChannel, Wire

__all__ = ["NetworkGroup", "share_host"]

_NAME = 64
"""Bytes of a host's name, by which it is called in messages."""


class NetworkGroup(Group):
    """Ranks that send their rows to each other.

    Only `_move` and `_meet` know how tensors travel: a subclass that has other means overrides these two.
    """

    host: Host | None = None
    """The memory that this rank shares with others of its host, if the world is on several: channels between them use it."""
    neighbours: Sequence[Sequence[int]] = ()
    """The ranks of each host that share memory; the same on every rank."""

    def __init__(self, backend: str, rank: int, size: int, timeout: float, init_method: str = "env://") -> None:
        """Meets the other ranks. `timeout` in seconds bounds the meeting and every wait.

        `backend` is torch.distributed's: `gloo`, `mpi`, or `nccl`, which is for tensors on CUDA devices, beside gloo for the
        others. If this process has met the other ranks already (torch.distributed is initialized), that stays as it is, also
        after `close`, and must have a backend for the CPU. Raises RankLost when they do not all come.
        """
        self._join(Wire(backend, rank, size, timeout, init_method), range(size), (), Clock())
        self.barrier("start")
        self._wire.hosts = self._names()

    def _join(self, wire: Wire, members: Sequence[int], counts: Sequence[int], clock: Clock) -> None:
        self.rank = members.index(wire.rank)
        self.size = len(members)
        self.clock = clock
        self.counts, self.dealt = tuple(counts) or (1,) * len(members), bool(counts)
        self._wire = wire
        self._members = members
        self._peers = [(place, peer) for place, peer in enumerate(members) if peer != wire.rank]
        self._tag = wire.tags(2)
        self._called = torch.zeros(1, dtype=torch.uint8)
        self._calls = torch.zeros(len(members), 1, dtype=torch.uint8)
        self._devices: dist.ProcessGroup | None = None
        self._made: list[Group | Channel] = []

    def _names(self) -> list[str]:
        name = socket.gethostname().encode()[:_NAME]
        row = torch.zeros(1, _NAME, dtype=torch.uint8)
        row[0, : len(name)] = torch.frombuffer(bytearray(name), dtype=torch.uint8)
        return [bytes(found).rstrip(b"\0").decode(errors="replace") for found in self.gather(row, "start").tolist()]

    def gather(self, parts: Tensor, phase: str) -> Tensor:
        """See `Group.gather`."""
        counts = self.rows_of(len(parts))
        rows = parts.reshape(len(parts), prod(parts.shape[1:]))
        if parts.is_cuda and self._wire.nccl:
            moved = self._move_devices(rows, counts, phase)
        else:
            moved = self._move(rows.cpu(), counts, phase).to(parts.device)
        return moved.view(sum(counts), *parts.shape[1:])

    def _move(self, rows: Tensor, counts: Sequence[int], phase: str) -> Tensor:
        """`[counts[rank], N]` on each rank -> `[sum(counts), N]` on every rank, on the CPU.

        A rank's call goes before its rows: until it comes this rank waits, from then on rows move. Raises RankLost.
        """
        begun = perf_counter()
        wire, tag = self._wire, self._tag
        everybody = rows.new_empty(sum(counts), rows.shape[1])
        shares = everybody.split(list(counts))
        mine = shares[self.rank].copy_(rows)
        arriving = []
        for place, peer in self._peers:
            call = wire.receive(self._calls[place], peer, tag, phase)
            share = shares[place]
            arriving.append((peer, call, wire.receive(_bytes(share), peer, tag + 1, phase) if share.numel() else None))
        leaving = [(peer, wire.send(self._called, peer, tag, phase)) for _, peer in self._peers]
        if mine.numel():
            leaving += [(peer, wire.send(_bytes(mine), peer, tag + 1, phase)) for _, peer in self._peers]
        called = perf_counter()
        for peer, call, _ in arriving:
            wire.wait(call, peer, phase)
        waited = perf_counter()
        for peer, _, body in arriving:
            if body is not None:
                wire.wait(body, peer, phase)
        for peer, work in leaving:
            wire.wait(work, peer, phase)
        self.clock.waited += waited - called
        self.clock.moved += called - begun + perf_counter() - waited
        return everybody

    def _meet(self, phase: str, patience: float = 1) -> None:
        """Returns when every rank has called it. Raises RankLost."""
        begun = perf_counter()
        wire, tag = self._wire, self._tag
        works = [(peer, wire.receive(self._calls[place], peer, tag, phase)) for place, peer in self._peers]
        works += [(peer, wire.send(self._called, peer, tag, phase)) for _, peer in self._peers]
        for peer, work in works:
            wire.wait(work, peer, phase, patience)
        self.clock.waited += perf_counter() - begun

    def _move_devices(self, rows: Tensor, counts: Sequence[int], phase: str) -> Tensor:
        """`_move` from device to device. NCCL wants as many rows of everybody, and can't tell who is lost: so they meet first."""
        self._meet(phase)
        begun = perf_counter()
        most = max(counts)
        padded = rows.new_zeros(most, rows.shape[1])
        padded[: len(rows)] = rows
        everybody = padded.new_empty(self.size * most, rows.shape[1])
        if everybody.numel():
            dist.all_gather_single(everybody.view(torch.uint8), padded.view(torch.uint8), self._devices)
        if most * self.size != sum(counts):
            shares = everybody.split(most)
            everybody = torch.cat([share[:count] for share, count in zip(shares, counts, strict=True)])
        self.clock.moved += perf_counter() - begun
        return everybody

    def barrier(self, phase: str, patience: float = 1) -> None:
        """See `Group.barrier`."""
        self._meet(phase, patience)

    def split(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        """See `Group.split`. Ranks that share memory use it."""
        if any(set(members) <= set(ranks) for ranks in self.neighbours):
            if self.host is None or not set(members) <= set(self.host.ranks):
                return Solo((), self.clock)
            part = part_of_host(self.host, members, counts, self.clock)
        else:
            part = self._part(members, counts)
        self._made.append(part)
        return part

    def _part(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        """`split` for ranks that do not share memory."""
        return _part(self._wire, members, counts, self.clock)

    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> Channel | None:
        """See `Group.channel`. Between ranks that share memory it uses that."""
        if source == target:
            return LocalChannel(specs, depth) if self.rank == source else None
        made: Channel | None = None
        if any({source, target} <= set(ranks) for ranks in self.neighbours):
            if self.host is not None and {source, target} <= set(self.host.ranks):
                made = self.host.channel(source, target, specs, depth, phase, self.clock)
        else:
            tag = self._wire.tags(2)
            if self.rank in (source, target):
                made = NetworkChannel(self._wire, source, target, specs, depth, phase, self.clock, tag)
        if made is not None:
            self._made.append(made)
        return made

    def settle(self, neighbours: Sequence[Sequence[int]], memory: int, timeout: float) -> None:
        """From now on these ranks of each host use shared memory; `memory` is a file descriptor of this rank's, or -1."""
        self.neighbours = neighbours
        if memory >= 0:
            mine = next(ranks for ranks in neighbours if self.rank in ranks)
            self.host = Host(memory, self.rank, mine, timeout)
            self.host.blame = self._wire.blame
        self.barrier("start")  # from here on every process id is in the memory

    def have_cores(self, count: int) -> None:
        """See `Group.have_cores`."""
        if self.host is not None:
            self.host.have_cores(count)

    def close(self) -> None:
        """See `Group.close`."""
        for made in self._made:
            made.close()
        if self.host is not None:
            self.host.close()
        self._wire.close()


def share_host(group: NetworkGroup, timeout: float) -> Group:
    """Shared memory instead of `group` if all its ranks are on one host and may open each other's memory.

    If only some are, the same `group`, which from now on uses shared memory for channels and parts between these. Either way
    torch.distributed stays as it is until the group is closed.
    """
    neighbours, memory = find_neighbours(group)
    if neighbours and len(neighbours[0]) == group.size:
        shared = SharedMemoryGroup(memory, group.rank, group.size, timeout)
        shared.adopt(group)
        return shared
    group.settle(neighbours, memory, timeout)
    return group


class _Part(NetworkGroup):
    """Some of the world's ranks."""

    def __init__(
        self, wire: Wire, members: Sequence[int], counts: Sequence[int], clock: Clock, devices: dist.ProcessGroup | None
    ) -> None:
        self._join(wire, tuple(members), counts, clock)
        self._devices = devices

    def split(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        raise AssertionError("only the world is split")

    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> Channel | None:
        raise AssertionError("only the world has channels")

    def close(self) -> None:
        """The connections are the world's."""


def _part(wire: Wire, members: Sequence[int], counts: Sequence[int], clock: Clock) -> Group:
    devices = dist.new_group(list(members), backend="nccl") if wire.nccl and len(members) > 1 else None
    if wire.rank in members and len(members) > 1:
        assert devices is None or isinstance(devices, dist.ProcessGroup)
        return _Part(wire, members, counts, clock, devices)
    if len(members) > 1:
        wire.tags(2)
    return Solo(counts if wire.rank in members else (), clock)


def _bytes(rows: Tensor) -> Tensor:
    """As bytes, because gloo does not know all types."""
    return rows.view(-1).view(torch.uint8)
