"""Group of one rank."""

from collections.abc import Sequence

from torch import Tensor

from lockstep.group.channel import Channel, LocalChannel, Spec
from lockstep.group.finished_count import FinishedCount, SharedFinishedCount
from lockstep.group.group import Clock, Group
from lockstep.group.memory import CACHE_LINE

__all__ = ["Solo"]


class Solo(Group):
    """Group whose only rank owns all shards."""

    rank = 0
    size = 1

    def __init__(self, counts: Sequence[int] = (), clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.counts = tuple(counts)

    def gather(self, own_rows: Tensor, phase: str) -> Tensor:
        """Return `own_rows` unchanged: this rank has all rows."""
        self.row_counts(own_rows.shape[0])
        return own_rows

    def reduce(self, own_rows: Tensor, phase: str) -> Tensor:
        """See `Group.reduce`. A single row is returned without a copy."""
        return own_rows[0] if self.row_counts(own_rows.shape[0]) == (1,) else super().reduce(own_rows, phase)

    def barrier(self, phase: str, timeout_factor: float = 1) -> None:
        """Do nothing: there is no other rank."""

    def split(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        """See `Group.split`."""
        return Solo(counts if 0 in members else (), self.clock)

    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> Channel:
        """See `Group.channel`."""
        assert source == target == 0
        return LocalChannel(specs, depth)

    def finished_count(self, shards: int) -> FinishedCount:
        """See `Group.finished_count`."""
        return SharedFinishedCount(shards, memoryview(bytearray(CACHE_LINE)).cast("q"), 0)

    def close(self) -> None:
        """Do nothing: there is no connection to close."""
