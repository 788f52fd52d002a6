"""Who plays and who trains which shard.

    coupled   rank 0: plays and trains shards 0, 1     rank 1: plays and trains shards 2, 3

A plan is a value. Nothing below it knows how many ranks there are, and no number that a run computes depends on it.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Plan", "PlanConfig"]


@dataclass(frozen=True)
class PlanConfig:
    """How the work is cut and shared."""

    kind: Literal["coupled"] = "coupled"
    """`coupled`: every rank plays and trains its own shards."""
    shards: int | None = None
    """Equal groups that the environments are cut in, once and for all: part of what is computed, unlike the number of ranks,
    which only carry them. None: as many as ranks in the run that first creates the experiment."""

    def __post_init__(self) -> None:
        if self.shards is not None and self.shards < 1:
            raise ValueError(f"plan.shards is {self.shards}: it must be at least 1")


@dataclass(frozen=True)
class Plan:
    """For every shard, the rank that plays it and the rank that trains on it."""

    players: tuple[int, ...]
    """`players[shard]` is the rank that collects it."""
    trainers: tuple[int, ...]
    """`trainers[shard]` is the rank that trains on it."""

    @classmethod
    def coupled(cls, shards: int, ranks: int) -> "Plan":
        """Each rank plays and trains an equal run of neighbouring shards.

        Raises ValueError when `ranks` does not divide `shards`.
        """
        if shards % ranks:
            raise ValueError(
                f"plan.shards is {shards}: {ranks} ranks can't carry them in equal parts; use a divisor of {shards} for --ranks"
            )
        carried = tuple(shard * ranks // shards for shard in range(shards))
        return cls(players=carried, trainers=carried)

    def played_by(self, rank: int) -> tuple[int, ...]:
        """The shards that `rank` collects, ascending."""
        return tuple(shard for shard, player in enumerate(self.players) if player == rank)

    def trained_by(self, rank: int) -> tuple[int, ...]:
        """The shards that `rank` trains on, ascending."""
        return tuple(shard for shard, trainer in enumerate(self.trainers) if trainer == rank)
