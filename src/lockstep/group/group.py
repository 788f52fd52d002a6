"""Collective operations over ranks.

In a group of one rank nothing is communicated: `gather` returns its input, and `reduce` adds the rows of this rank. So
the algorithm does not depend on the number of ranks.

`gather` and `reduce` work on *own rows*: the rows that this rank contributes, one for each of its shards, in ascending
order. Every rank owns consecutive shards, so the rows of rank 0, rank 1, … stacked are the rows of shard 0, shard 1, …
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import Thread
from time import perf_counter

import torch
from torch import Tensor

from lockstep.group.channel import Channel, Spec
from lockstep.group.finished_count import FinishedCount

__all__ = ["Clock", "Group", "PendingSum", "RankLost", "ordered_sum"]


class RankLost(RuntimeError):
    """A rank died or did not respond in time. The message names the rank, the host and the phase."""

    reported = False
    """True if that rank has ended with an error that it has reported itself, so that this one adds nothing."""

    def __init__(self, who: str, phase: str, why: str) -> None:
        super().__init__(f"{who} is lost in phase '{phase}': {why}")

    @classmethod
    def from_message(cls, message: str) -> "RankLost":
        """Create an error with this message, for a process that does not know which rank was lost."""
        return cls.__new__(cls, message)


class Clock:
    """Time that a rank spends on communication. All groups and channels of a rank share one clock."""

    def __init__(self) -> None:
        self.waited = 0.0
        """Seconds spent waiting for other ranks since the last `read`."""
        self.transferred = 0.0
        """Seconds spent moving and adding tensors since the last `read`."""

    def read(self) -> tuple[float, float]:
        """Return the seconds (waited, transferred) since the last call, and reset both."""
        elapsed = (self.waited, self.transferred)
        self.waited = self.transferred = 0.0
        return elapsed


class PendingSum:
    """The result of `Group.begin_reduce`: a sum that a thread computes while this rank computes something else. The group may not be used before `result` has returned."""

    def __init__(self, add: Callable[[], Tensor], clock: Clock, context: AbstractContextManager[object]) -> None:
        """Call `add`, which counts its time in `clock`, in a thread and in `context`."""
        self._add, self._clock, self._context = add, clock, context
        self._before = clock.waited, clock.transferred
        self._total: Tensor | None = None
        self._error: BaseException | None = None
        # a daemon, so that the process can end if this rank fails while it computes
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            with torch.no_grad(), self._context:
                self._total = self._add()
        except BaseException as error:
            self._error = error

    def result(self) -> Tensor:
        """Wait for the sum, `[columns]`. Only the time of this wait counts as communication. Raises RankLost, see `Group.reduce`."""
        start = perf_counter()
        self._thread.join()
        seconds = perf_counter() - start
        (waited, transferred), clock = self._before, self._clock
        spent = clock.waited - waited + clock.transferred - transferred
        share = (clock.waited - waited) / spent if spent else 0.0
        clock.waited, clock.transferred = waited + share * seconds, transferred + (1 - share) * seconds
        if self._error is not None:
            raise self._error
        assert self._total is not None
        return self._total


def ordered_sum(rows: Tensor | Sequence[Tensor]) -> Tensor:
    """Add the rows of a tensor `[rows, columns]` one after the other: `((row 0 + row 1) + row 2) + …`.

    The result `[columns]` has the same bits on every rank.
    """
    rows = rows.unbind(0) if isinstance(rows, Tensor) else rows
    if len(rows) == 1:
        return rows[0].clone()
    total = rows[0] + rows[1]
    for row in rows[2:]:
        total += row
    return total


class Group(ABC):
    """Ranks that work in lockstep. Every rank calls the same operations in the same order."""

    rank: int
    """This rank's index in the group."""
    size: int
    """Number of ranks in the group."""
    clock: Clock
    """Communication time of this rank."""
    counts: tuple[int, ...] = ()
    """Number of rows that each rank contributes to `gather` and `reduce`, if they were passed to `split`. Empty: in each call, all ranks contribute
    the same number of rows, one or more."""

    @abstractmethod
    def gather(self, own_rows: Tensor, phase: str) -> Tensor:
        """Concatenate the rows of all ranks: `[counts[rank], …]` on each rank -> `[sum(counts), …]` on every rank.

        The rows are in shard order, on the device of `own_rows`. Raises RankLost if a rank does not take part in time.
        """

    def share(self, own_rows: Tensor, phase: str) -> Tensor:
        """Gather rows `[counts[rank], columns]`, perhaps without a copy: the result must not change, and is valid until the next operation."""
        return self.gather(own_rows, phase)

    def reduce(self, own_rows: Tensor, phase: str) -> Tensor:
        """Add the rows of all ranks in shard order: `[counts[rank], columns]` on each rank -> `[columns]` on all.

        The sum has the same bits on every rank. It may share memory with `own_rows`, which the caller must fill again
        before the next use. Raises RankLost if a rank does not take part in time.
        """
        rows = self.gather(own_rows, phase)
        start = perf_counter()
        total = ordered_sum(rows)
        self.clock.transferred += perf_counter() - start
        return total

    def adds_in_background(self, row_bytes: int) -> bool:
        """Return True if `begin_reduce` saves time for rows of that size: they are sent to other hosts while this rank computes. Equal on all ranks."""
        return False

    def begin_reduce(self, own_rows: Tensor, phase: str) -> PendingSum:
        """Begin `reduce` in a thread. The group may not be used, and `own_rows` not changed, before `PendingSum.result` has returned the sum."""
        return PendingSum(partial(self.reduce, own_rows, phase), self.clock, nullcontext())

    @abstractmethod
    def barrier(self, phase: str, timeout_factor: float = 1) -> None:
        """Wait until every rank has called `barrier`.

        Raises RankLost if a rank has not called it within `timeout_factor` times the timeout.
        """

    @abstractmethod
    def split(self, members: Sequence[int], counts: Sequence[int]) -> "Group":
        """Create a group of the ranks `members`, which are ascending; member i contributes `counts[i]` rows.

        Every rank calls it, in the same order, with the same arguments. Ranks outside the group get a placeholder group of one
        rank. Only the group of all ranks can be split and has channels.
        """

    @abstractmethod
    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> Channel | None:
        """Create a channel of `depth` slots from one rank to another, or to itself. Return None on all other ranks.

        Every rank calls it, in the same order, with the same arguments.
        """

    @abstractmethod
    def finished_count(self, shards: int) -> FinishedCount:
        """Create a count of the shards that have finished their rollouts, out of `shards` of all ranks.

        Every rank calls it, in the same order. Only the group of all ranks has one. Raises ValueError if the ranks have no store.
        """

    def set_core_count(self, count: int) -> None:  # noqa: B027  (groups that never busy-wait do not need it)
        """Set the number of cores that the ranks of this host have together.

        If there is a core for each rank, ranks spin while they wait.
        """

    def avoid_long_yields(self) -> None:  # noqa: B027
        """Let a rank that waits sleep instead of yielding its core, after a yield that took long: otherwise processes that only use idle time (SCHED_IDLE)
        delay it.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave the group, and close the groups and channels that it created."""

    def timings(self) -> tuple[float, float]:
        """Return the seconds (waited, transferred) since the last call."""
        return self.clock.read()

    def row_counts(self, count: int) -> tuple[int, ...]:
        """Return the number of rows that each rank contributes, given that this rank contributes `count`."""
        if not self.counts:
            return (count,) * self.size
        assert count == self.counts[self.rank], f"{count} rows from rank {self.rank}: the counts are {self.counts}"
        return self.counts
