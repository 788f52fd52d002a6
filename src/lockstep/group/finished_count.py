"""Count of the shards that have finished a rollout, which every rank can read without waiting for another one."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic

from lockstep.group.memory import CACHE_LINE

__all__ = ["FinishedCount", "SharedFinishedCount", "StoredFinishedCount"]

_SLOTS = 4
"""Counters that are used in turn. Players are at most two iterations apart, so no rank uses the counter of an iteration that another one is in."""
_PERIOD = 0.01
"""Seconds between two requests to a store."""


class FinishedCount(ABC):
    """Number of shards that have finished the rollout of an iteration. Every rank that plays has one and reports every iteration.

    Counters are never reset: each shard is counted once per iteration, so a rank knows what earlier iterations have added.
    """

    def __init__(self, shards: int) -> None:
        """`shards` is the number of shards of all ranks."""
        self._shards = shards
        self._before = [0] * _SLOTS

    def finish(self, iteration: int, count: int) -> None:
        """Report that `count` shards of this rank have finished, which must be all that it plays. Call it at most once per iteration."""
        slot = iteration % _SLOTS
        self._add(slot, count)
        self._before[slot] += self._shards

    def total(self, iteration: int) -> int:
        """Return the number of shards that have finished, as far as known here. For an iteration that this rank has not finished."""
        slot = iteration % _SLOTS
        return self._read(slot) - self._before[slot]

    @abstractmethod
    def _add(self, slot: int, count: int) -> None: ...

    @abstractmethod
    def _read(self, slot: int) -> int: ...


class SharedFinishedCount(FinishedCount):
    """FinishedCount in memory that ranks of one host share: a cache line for each of them, which only that rank writes."""

    def __init__(self, shards: int, cells: memoryview, rank: int) -> None:
        """`cells` are 8 int64 per rank, zeros at first."""
        super().__init__(shards)
        self._cells = cells
        self._own = rank * CACHE_LINE // 8

    def _add(self, slot: int, count: int) -> None:
        self._cells[self._own + slot] += count

    def _read(self, slot: int) -> int:
        return sum(self._cells[slot :: CACHE_LINE // 8])


class StoredFinishedCount(FinishedCount):
    """FinishedCount in the store of torch.distributed, for ranks on any hosts. A rank sees a change after 10 ms at most, and the time of a request."""

    def __init__(self, shards: int, add: Callable[[str, int], int]) -> None:
        """`add` adds a number to a counter of the store and returns the sum."""
        super().__init__(shards)
        self._add_to = add
        self._known = [0] * _SLOTS
        self._request_at = 0.0

    def _add(self, slot: int, count: int) -> None:
        self._known[slot] = self._add_to(_key(slot), count)

    def _read(self, slot: int) -> int:
        if monotonic() >= self._request_at:
            self._known[slot] = self._add_to(_key(slot), 0)
            self._request_at = monotonic() + _PERIOD
        return self._known[slot]


def _key(slot: int) -> str:
    return f"lockstep/finished/{slot}"
