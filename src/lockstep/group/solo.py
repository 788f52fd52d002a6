"""A group of one."""

from collections.abc import Sequence

from torch import Tensor

from lockstep.group.channel import Channel, LocalChannel, Spec
from lockstep.group.group import Clock, Group

__all__ = ["Solo"]


class Solo(Group):
    """One rank that carries all shards."""

    rank = 0
    size = 1

    def __init__(self, counts: Sequence[int] = (), clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.counts, self.dealt = tuple(counts) or (1,), bool(counts)

    def gather(self, parts: Tensor, phase: str) -> Tensor:
        """All rows are here."""
        self.rows_of(parts.shape[0])
        return parts

    def reduce(self, parts: Tensor, phase: str) -> Tensor:
        """A single row is its own sum, and is not copied."""
        return parts[0] if self.rows_of(parts.shape[0]) == (1,) else super().reduce(parts, phase)

    def barrier(self, phase: str, patience: float = 1) -> None:
        """Nobody to wait for."""

    def split(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        """See `Group.split`."""
        return Solo(counts if 0 in members else (), self.clock)

    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> Channel:
        """See `Group.channel`."""
        assert source == target == 0
        return LocalChannel(specs, depth)

    def close(self) -> None:
        """Nobody to leave."""
