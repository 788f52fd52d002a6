"""Ranks of one host, through anonymous shared memory.

A group's region of the memory (`lockstep.group.memory`):

    header   64 bytes a rank (its own cache line): how many exchanges it has entered
    arena 0  rows of the even exchanges, all ranks' one after the other
    arena 1  rows of the odd exchanges

A rank writes its rows, raises its counter and waits until every counter is as high. One wait is enough, because it writes to
an arena again only two exchanges later, and then everybody has entered the exchange between, so has read this one.
"""

from collections.abc import Sequence
from math import prod
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.group.channel import Channel, LocalChannel, Spec
from lockstep.group.group import Clock, Group, ordered_sum
from lockstep.group.host import Host
from lockstep.group.memory import LINE
from lockstep.group.solo import Solo

__all__ = ["SharedMemoryGroup", "part_of_host"]

ARENA = 64 << 20
"""Bytes of an arena. Larger payloads go in pieces."""
_KNOWN = 64
"""Layouts that are remembered."""


class _View(NamedTuple):
    """A piece of a payload in an arena."""

    mine: Tensor
    """`[counts[rank], columns]`"""
    everybody: Tensor
    """`[sum(counts), columns]`"""
    rows: tuple[Tensor, ...]
    """The rows of `everybody`."""


class _Piece(NamedTuple):
    columns: slice | None
    """None: all."""
    views: tuple[_View, _View]
    """In arena 0 and 1."""


class SharedMemoryGroup(Group):
    """See the module's docstring."""

    def __init__(self, memory: int, rank: int, size: int, timeout: float) -> None:
        """Joins the world. `memory` is a file descriptor of `create_memory(size)`, which the group closes; `timeout` is in
        seconds, per wait.
        """
        self._join(Host(memory, rank, range(size), timeout), range(size), (), Clock())
        self.barrier("start")

    def _join(self, host: Host, members: Sequence[int], counts: Sequence[int], clock: Clock) -> None:
        self.rank = members.index(host.rank)
        self.size = len(members)
        self.clock = clock
        self.counts, self.dealt = tuple(counts) or (1,) * len(members), bool(counts)
        self._host = host
        self._members = members
        region = host.memory.region(_region(self.size))
        self._bytes = torch.frombuffer(region, dtype=torch.uint8)
        self._counters = memoryview(region)[: self.size * LINE].cast("q")
        self._entered = 0
        self._layouts: dict[tuple[torch.Size, torch.dtype], list[_Piece]] = {}
        self._made: list[Group | Channel] = []

    def gather(self, parts: Tensor, phase: str) -> Tensor:
        """See `Group.gather`."""
        pieces = self._pieces(parts.shape, parts.dtype)
        if len(pieces) == 1:
            everybody = self._exchange(parts, pieces[0], phase).everybody
            begun = perf_counter()
            whole = everybody.to(parts.device, copy=True)
            self.clock.moved += perf_counter() - begun
        else:
            whole = parts.new_empty(len(pieces[0].views[0].rows), prod(parts.shape[1:]))
            for piece in pieces:
                everybody = self._exchange(parts, piece, phase).everybody
                begun = perf_counter()
                whole[:, piece.columns] = everybody
                self.clock.moved += perf_counter() - begun
        return whole.view(len(whole), *parts.shape[1:])

    def reduce(self, parts: Tensor, phase: str) -> Tensor:
        """See `Group.reduce`; adds straight from the shared rows."""
        sums = []
        for piece in self._pieces(parts.shape, parts.dtype):
            rows = self._exchange(parts, piece, phase).rows
            begun = perf_counter()
            sums.append(ordered_sum(rows))
            self.clock.moved += perf_counter() - begun
        total = sums[0] if len(sums) == 1 else torch.cat(sums)
        return total.to(parts.device) if parts.is_cuda else total

    def _exchange(self, parts: Tensor, piece: _Piece, phase: str) -> _View:
        """Everybody's rows of a piece, to be used before the next exchange."""
        begun = perf_counter()
        view = piece.views[self._entered % 2]
        if parts.dim() != 2:
            parts = parts.reshape(len(parts), prod(parts.shape[1:]))
        view.mine.copy_(parts if piece.columns is None else parts[:, piece.columns])
        entered = perf_counter()
        self._enter(phase)
        arrived = perf_counter()
        self.clock.waited += arrived - entered
        self.clock.moved += entered - begun
        return view

    def _pieces(self, shape: torch.Size, dtype: torch.dtype) -> list[_Piece]:
        """How parts of this shape are laid out in the arenas."""
        known = self._layouts.get((shape, dtype))
        if known is None:
            if len(self._layouts) == _KNOWN:
                self._layouts.clear()
            known = self._layouts[shape, dtype] = self._lay_out(shape, dtype)
        return known

    def _lay_out(self, shape: torch.Size, dtype: torch.dtype) -> list[_Piece]:
        counts, columns = self.rows_of(shape[0]), prod(shape[1:])
        total, start = sum(counts), sum(counts[: self.rank])
        width = max(1, ARENA // (total * dtype.itemsize))
        pieces = []
        for left in range(0, max(columns, 1), width):
            wide = min(width, columns - left)
            views = []
            for arena in range(2):
                begin = self.size * LINE + arena * ARENA
                length = total * wide * dtype.itemsize
                everybody = self._bytes[begin : begin + length].view(dtype).view(total, wide)
                views.append(_View(everybody[start : start + shape[0]], everybody, everybody.unbind(0)))
            pieces.append(_Piece(slice(left, left + wide) if wide < columns else None, (views[0], views[1])))
        return pieces

    def barrier(self, phase: str, patience: float = 1) -> None:
        """See `Group.barrier`."""
        begun = perf_counter()
        self._enter(phase, patience)
        self.clock.waited += perf_counter() - begun

    def _enter(self, phase: str, patience: float = 1) -> None:
        """Raises this rank's counter and waits until nobody's is lower."""
        self._entered += 1
        self._host.fence()
        self._counters[self.rank * LINE // 8] = self._entered
        for member, peer in enumerate(self._members):
            if self._counters[member * LINE // 8] < self._entered:
                self._host.wait(self._counters, member * LINE // 8, self._entered, peer, phase, patience)
        self._host.fence()

    def split(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        """See `Group.split`."""
        part = part_of_host(self._host, members, counts, self.clock)
        self.adopt(part)
        return part

    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> Channel | None:
        """See `Group.channel`."""
        if source == target:
            return LocalChannel(specs, depth) if self.rank == source else None
        channel = self._host.channel(source, target, specs, depth, phase, self.clock)
        if channel is not None:
            self.adopt(channel)
        return channel

    def adopt(self, made: Group | Channel) -> None:
        """Closes `made` when this group is closed."""
        self._made.append(made)

    def have_cores(self, count: int) -> None:
        """See `Group.have_cores`."""
        self._host.have_cores(count)

    def close(self) -> None:
        """See `Group.close`."""
        for made in self._made:
            made.close()
        self._counters.release()
        self._host.close()


class _Part(SharedMemoryGroup):
    """Some of the world's ranks."""

    def __init__(self, host: Host, members: Sequence[int], counts: Sequence[int], clock: Clock) -> None:
        self._join(host, tuple(members), counts, clock)

    def split(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        raise AssertionError("only the world is split")

    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> Channel | None:
        raise AssertionError("only the world has channels")

    def close(self) -> None:
        """The memory is the world's."""
        self._counters.release()


def part_of_host(host: Host, members: Sequence[int], counts: Sequence[int], clock: Clock) -> Group:
    """The group of some of the host's ranks. Every rank of the host calls it; see `Group.split`."""
    if len(members) == 1 or host.rank not in members:
        if len(members) > 1:
            host.memory.skip(_region(len(members)))
        return Solo(counts if host.rank in members else (), clock)
    return _Part(host, members, counts, clock)


def _region(size: int) -> int:
    return size * LINE + 2 * ARENA
