"""The verbs that ranks speak. Alone they do nothing, so the algorithm never asks how many ranks there are.

`gather` and `reduce` work on *parts*: the rows that this rank contributes, one for each of its shards, ascending. Ranks carry
neighbouring shards in order, so the rows of rank 0, rank 1, … stacked are the rows of shard 0, shard 1, …
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter

from torch import Tensor

from lockstep.group.channel import Channel, Spec

__all__ = ["Clock", "Group", "RankLost", "ordered_sum"]


class RankLost(RuntimeError):
    """A rank died or did not arrive in time. The message names the rank, the host and the phase."""

    def __init__(self, who: str, phase: str, why: str) -> None:
        super().__init__(f"{who} is lost in phase '{phase}': {why}")


class Clock:
    """Where a rank's time goes when it deals with others. One for all its groups and channels."""

    def __init__(self) -> None:
        self.waited = 0.0
        """Seconds spent waiting for other ranks since `read`."""
        self.moved = 0.0
        """Seconds spent moving and adding since `read`."""

    def read(self) -> tuple[float, float]:
        """Seconds (waited, moved) since the last call."""
        elapsed = (self.waited, self.moved)
        self.waited = self.moved = 0.0
        return elapsed


def ordered_sum(parts: Tensor | Sequence[Tensor]) -> Tensor:
    """Adds the rows of `[S, N]` one after the other: `((row 0 + row 1) + row 2) + …`, the same bits wherever it is done."""
    rows = parts.unbind(0) if isinstance(parts, Tensor) else parts
    if len(rows) == 1:
        return rows[0].clone()
    total = rows[0] + rows[1]
    for row in rows[2:]:
        total += row
    return total


class Group(ABC):
    """Ranks that work in lockstep. Every rank calls the same verbs in the same order."""

    rank: int
    """This rank's place in the group."""
    size: int
    clock: Clock
    counts: tuple[int, ...]
    """Rows that each rank contributes to `gather` and `reduce`."""
    dealt = False
    """Whether `counts` were given to `split`. Without, all ranks contribute equally many, one or more."""

    @abstractmethod
    def gather(self, parts: Tensor, phase: str) -> Tensor:
        """`[counts[rank], …]` on each rank -> `[sum(counts), …]` on every rank, in shard order, on the device of `parts`.

        Raises RankLost when a rank does not take part in time.
        """

    def reduce(self, parts: Tensor, phase: str) -> Tensor:
        """`[counts[rank], N]` on each rank -> `[N]`, the sum over all rows in shard order; every rank gets the same bits.

        The sum may lie where `parts` did: the caller fills them anew before it uses them again.
        """
        everything = self.gather(parts, phase)
        begun = perf_counter()
        total = ordered_sum(everything)
        self.clock.moved += perf_counter() - begun
        return total

    @abstractmethod
    def barrier(self, phase: str, patience: float = 1) -> None:
        """Returns when every rank has called it. Raises RankLost when one has not after `patience` times the timeout."""

    @abstractmethod
    def split(self, members: Sequence[int], counts: Sequence[int]) -> "Group":
        """The group of these ranks, ascending; member i contributes `counts[i]` rows.

        Every rank calls it, in the same order, with the same arguments. Who is no member gets a group of its own, of no use but
        to be asked. Only the world is split, and only the world has channels.
        """

    @abstractmethod
    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> Channel | None:
        """A channel of `depth` slots from one rank to another, or to itself. None on all other ranks.

        Every rank calls it, in the same order, with the same arguments.
        """

    def have_cores(self, count: int) -> None:  # noqa: B027  (a group whose ranks never wait for each other by looking)
        """Says how many cores the ranks of this host have together; where each has one, waiting for another is faster."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the group, and with it the groups and channels that it made."""

    def timings(self) -> tuple[float, float]:
        """Seconds (waited, moved) since the last call."""
        return self.clock.read()

    def rows_of(self, own: int) -> tuple[int, ...]:
        """How many rows each rank contributes when this one contributes `own`."""
        if not self.dealt:
            return (own,) * self.size
        assert own == self.counts[self.rank], f"{own} rows from rank {self.rank}, whose share is {self.counts}"
        return self.counts
