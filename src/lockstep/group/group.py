"""The verbs that ranks speak. Alone they do nothing, so the algorithm never asks how many ranks there are.

Every verb works on *parts*: the rows that this rank's shards contribute, ascending. All ranks carry the same number of
shards, in order, so the rows of rank 0, rank 1, … stacked are the rows of shard 0, shard 1, …
"""

from abc import ABC, abstractmethod
from time import perf_counter

from torch import Tensor

__all__ = ["Group", "RankLost", "ordered_sum"]


class RankLost(RuntimeError):
    """A rank died or did not arrive in time. The message names the rank, the host and the phase."""

    def __init__(self, who: str, phase: str, why: str) -> None:
        super().__init__(f"{who} is lost in phase '{phase}': {why}")


def ordered_sum(parts: Tensor) -> Tensor:
    """Adds the rows of `[S, N]` one after the other: `((row 0 + row 1) + row 2) + …`, the same bits wherever it is done."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


class Group(ABC):
    """Ranks that work in lockstep. Every rank calls the same verbs in the same order."""

    rank: int
    size: int
    waited: float = 0.0
    """Seconds spent waiting for other ranks since `timings`."""
    moved: float = 0.0
    """Seconds spent moving and adding since `timings`."""

    @abstractmethod
    def gather(self, parts: Tensor, phase: str) -> Tensor:
        """`[s, …]` on each rank, s its number of shards -> `[S, …]` on every rank, in shard order.

        Raises RankLost when a rank does not take part in time.
        """

    def reduce(self, parts: Tensor, phase: str) -> Tensor:
        """`[s, N]` on each rank -> `[N]`, the sum over all shards in shard order; every rank gets the same bits."""
        everything = self.gather(parts, phase)
        begun = perf_counter()
        total = ordered_sum(everything)
        self.moved += perf_counter() - begun
        return total

    @abstractmethod
    def barrier(self, phase: str) -> None:
        """Returns when every rank has called it."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the group."""

    def timings(self) -> tuple[float, float]:
        """Seconds (waited, moved) since the last call."""
        elapsed = (self.waited, self.moved)
        self.waited = self.moved = 0.0
        return elapsed
