"""A group of one."""

from torch import Tensor

from lockstep.group.group import Group

__all__ = ["Solo"]


class Solo(Group):
    """One rank that carries all shards."""

    rank = 0
    size = 1

    def gather(self, parts: Tensor, phase: str) -> Tensor:
        """All rows are here."""
        return parts

    def barrier(self, phase: str) -> None:
        """Nobody to wait for."""

    def close(self) -> None:
        """Nobody to leave."""
