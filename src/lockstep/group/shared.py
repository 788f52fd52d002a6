"""Group of ranks on one host, through anonymous shared memory.

A group's region of the memory (`lockstep.group.memory`):

    header   64 bytes a rank (its own cache line): the number of times that it has reached a barrier
    arena 0  rows of the even exchanges, those of all ranks one after the other
    arena 1  rows of the odd exchanges

A rank writes its rows, increments its counter and waits until every counter is at least as high. One wait per exchange
is enough: a rank writes to the same arena again two exchanges later. By then every rank has entered the exchange in
between, so it has finished reading this one.
"""

from collections.abc import Sequence
from math import prod
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.group.channel import Channel, LocalChannel, Spec
from lockstep.group.finished_count import FinishedCount, SharedFinishedCount
from lockstep.group.group import Clock, Group, ordered_sum
from lockstep.group.host import Host
from lockstep.group.memory import CACHE_LINE
from lockstep.group.reduction import in_slices_in_memory
from lockstep.group.solo import Solo

__all__ = ["SharedMemoryGroup", "make_host_subgroup", "max_columns"]

ARENA = 64 << 20
"""Bytes of an arena. Larger payloads are exchanged in several chunks."""
_MAX_LAYOUTS = 64
"""Number of layouts that are cached."""


def max_columns(rows: int, dtype: torch.dtype) -> int:
    """Return the largest number of columns that are exchanged at once."""
    return max(1, ARENA // (rows * dtype.itemsize))


class _View(NamedTuple):
    """Views of one chunk of a payload in one arena."""

    own_rows: Tensor
    """Rows of this rank, `[counts[rank], columns]`."""
    all_rows: Tensor
    """Rows of all ranks, `[sum(counts), columns]`."""
    rows: tuple[Tensor, ...]
    """The rows of `all_rows`."""


class _Chunk(NamedTuple):
    """Columns of a payload that are exchanged at once."""

    columns: slice | None
    """The columns; None: all."""
    views: tuple[_View, _View]
    """The views in arena 0 and in arena 1."""


class SharedMemoryGroup(Group):
    """Group of ranks that exchange rows through the memory described at the top of this module."""

    def __init__(self, memory: int, rank: int, size: int, timeout: float) -> None:
        """Join the other ranks. The group closes `memory`, a descriptor from `create_memory(size)`.

        `timeout` is in seconds, per wait. Raises RankLost if not all ranks join in time.
        """
        self._join(Host(memory, rank, range(size), timeout), range(size), (), Clock())
        self.barrier("start")

    def _join(self, host: Host, members: Sequence[int], counts: Sequence[int], clock: Clock) -> None:
        self.rank = members.index(host.rank)
        self.size = len(members)
        self.clock = clock
        self.counts = tuple(counts)
        self._host = host
        self._members = members
        region = host.memory.region(_region_bytes(self.size))
        self._bytes = torch.frombuffer(region, dtype=torch.uint8)
        self._counters = memoryview(region)[: self.size * CACHE_LINE].cast("q")
        self._entered = 0
        self._exchanged = 0
        self._layouts: dict[tuple[torch.Size, torch.dtype], list[_Chunk]] = {}
        self._owned: list[Group | Channel] = []

    def gather(self, own_rows: Tensor, phase: str) -> Tensor:
        """See `Group.gather`."""
        chunks = self._chunks(own_rows.shape, own_rows.dtype)
        if len(chunks) == 1:
            shared_rows = self._exchange(own_rows, chunks[0], phase).all_rows
            start = perf_counter()
            all_rows = shared_rows.to(own_rows.device, copy=True)
            self.clock.transferred += perf_counter() - start
        else:
            all_rows = own_rows.new_empty(len(chunks[0].views[0].rows), prod(own_rows.shape[1:]))
            for chunk in chunks:
                shared_rows = self._exchange(own_rows, chunk, phase).all_rows
                start = perf_counter()
                all_rows[:, chunk.columns] = shared_rows
                self.clock.transferred += perf_counter() - start
        return all_rows.view(len(all_rows), *own_rows.shape[1:])

    def share(self, own_rows: Tensor, phase: str) -> Tensor:
        """See `Group.share`. At most `max_columns` columns."""
        (chunk,) = self._chunks(own_rows.shape, own_rows.dtype)
        return self._exchange(own_rows, chunk, phase).all_rows

    def reduce(self, own_rows: Tensor, phase: str) -> Tensor:
        """See `Group.reduce`. The sum is computed directly from the shared rows."""
        is_large = in_slices_in_memory(sum(self.row_counts(len(own_rows))), own_rows[:1].nbytes)
        add = self._add_slices if is_large else self._add_all
        sums = [
            add(self._exchange(own_rows, chunk, phase), phase) for chunk in self._chunks(own_rows.shape, own_rows.dtype)
        ]
        total = sums[0] if len(sums) == 1 else torch.cat(sums)
        return total.to(own_rows.device) if own_rows.is_cuda else total

    def _add_all(self, view: _View, phase: str) -> Tensor:
        start = perf_counter()
        total = ordered_sum(view.rows)
        self.clock.transferred += perf_counter() - start
        return total

    def _add_slices(self, view: _View, phase: str) -> Tensor:
        """Add the rows of `view`: each rank adds one slice of the columns, in place in the first row, which no other rank reads there."""
        start = perf_counter()
        slices = view.all_rows.tensor_split(self.size, dim=1)[self.rank]
        slices[0] = ordered_sum(slices)
        added = perf_counter()
        self._enter(phase)
        entered = perf_counter()
        total = view.rows[0].clone()
        self.clock.waited += entered - added
        self.clock.transferred += added - start + perf_counter() - entered
        return total

    def _exchange(self, own_rows: Tensor, chunk: _Chunk, phase: str) -> _View:
        """Write this rank's columns of `chunk` and wait for those of all ranks. The view is valid until the next exchange."""
        start = perf_counter()
        self._exchanged += 1
        view = chunk.views[self._exchanged % 2]
        if own_rows.dim() != 2:
            own_rows = own_rows.reshape(len(own_rows), prod(own_rows.shape[1:]))
        view.own_rows.copy_(own_rows if chunk.columns is None else own_rows[:, chunk.columns])
        written = perf_counter()
        self._enter(phase)
        self.clock.waited += perf_counter() - written
        self.clock.transferred += written - start
        return view

    def _chunks(self, shape: torch.Size, dtype: torch.dtype) -> list[_Chunk]:
        chunks = self._layouts.get((shape, dtype))
        if chunks is None:
            if len(self._layouts) == _MAX_LAYOUTS:
                self._layouts.clear()
            chunks = self._layouts[shape, dtype] = self._make_pieces(shape, dtype)
        return chunks

    def _make_pieces(self, shape: torch.Size, dtype: torch.dtype) -> list[_Chunk]:
        counts, columns = self.row_counts(shape[0]), prod(shape[1:])
        total, first_row = sum(counts), sum(counts[: self.rank])
        max_width = max_columns(total, dtype)
        chunks = []
        for first_column in range(0, max(columns, 1), max_width):
            width = min(max_width, columns - first_column)
            views = []
            for arena in range(2):
                begin = self.size * CACHE_LINE + arena * ARENA
                length = total * width * dtype.itemsize
                all_rows = self._bytes[begin : begin + length].view(dtype).view(total, width)
                views.append(_View(all_rows[first_row : first_row + shape[0]], all_rows, all_rows.unbind(0)))
            selected = slice(first_column, first_column + width) if width < columns else None
            chunks.append(_Chunk(selected, (views[0], views[1])))
        return chunks

    def barrier(self, phase: str, timeout_factor: float = 1) -> None:
        """See `Group.barrier`."""
        start = perf_counter()
        self._enter(phase, timeout_factor)
        self.clock.waited += perf_counter() - start

    def _enter(self, phase: str, timeout_factor: float = 1) -> None:
        """Increment this rank's counter and wait until no rank's counter is lower."""
        self._entered += 1
        self._host.fence()
        self._counters[self.rank * CACHE_LINE // 8] = self._entered
        for member, peer in enumerate(self._members):
            if self._counters[member * CACHE_LINE // 8] < self._entered:
                self._host.wait(self._counters, member * CACHE_LINE // 8, self._entered, peer, phase, timeout_factor)
        self._host.fence()

    def split(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        """See `Group.split`."""
        subgroup = make_host_subgroup(self._host, members, counts, self.clock)
        self.adopt(subgroup)
        return subgroup

    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> Channel | None:
        """See `Group.channel`."""
        if source == target:
            return LocalChannel(specs, depth) if self.rank == source else None
        channel = self._host.channel(source, target, specs, depth, phase, self.clock)
        if channel is not None:
            self.adopt(channel)
        return channel

    def finished_count(self, shards: int) -> FinishedCount:
        """See `Group.finished_count`."""
        size = self.size * CACHE_LINE
        return SharedFinishedCount(shards, memoryview(self._host.memory.region(size))[:size].cast("q"), self.rank)

    def adopt(self, owned: Group | Channel) -> None:
        """Close `owned` when this group is closed."""
        self._owned.append(owned)

    def set_core_count(self, count: int) -> None:
        """See `Group.set_core_count`."""
        self._host.set_core_count(count)

    def avoid_long_yields(self) -> None:
        """See `Group.avoid_long_yields`."""
        self._host.avoids_long_yields = True

    def close(self) -> None:
        """See `Group.close`."""
        for owned in self._owned:
            owned.close()
        self._counters.release()
        self._host.close()


class _Subgroup(SharedMemoryGroup):
    """Group of some of the host's ranks."""

    def __init__(self, host: Host, members: Sequence[int], counts: Sequence[int], clock: Clock) -> None:
        self._join(host, tuple(members), counts, clock)

    def split(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        raise AssertionError("only the group of all ranks can be split")

    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> Channel | None:
        raise AssertionError("only the group of all ranks has channels")

    def close(self) -> None:
        """Release the counters. The group of all ranks owns the memory."""
        self._counters.release()


def make_host_subgroup(host: Host, members: Sequence[int], counts: Sequence[int], clock: Clock) -> Group:
    """Create a group of some of the host's ranks, see `Group.split`. Every rank of the host calls it."""
    if len(members) == 1 or host.rank not in members:
        if len(members) > 1:
            host.memory.skip(_region_bytes(len(members)))
        return Solo(counts if host.rank in members else (), clock)
    return _Subgroup(host, members, counts, clock)


def _region_bytes(size: int) -> int:
    return size * CACHE_LINE + 2 * ARENA
