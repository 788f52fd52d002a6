"""Who plays and who trains which shard.

    coupled       rank 0: plays and trains 0, 1      rank 1: plays and trains 2, 3
    one-trainer   rank 0: trains 0 … 3               ranks 1, 2: play 0, 1 | 2, 3
    one-player    ranks 0, 1: train 0, 1 | 2, 3      rank 2: plays 0 … 3
    P:T           ranks 0 … T-1 train                ranks T … T+P-1 play
    ranks         whoever plan.players and plan.trainers name; a rank may be in both

A plan is a value. Nothing below it knows how many ranks there are, and no number that a run computes depends on it.
Rank 0 trains in every plan: it is the one that writes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Plan", "PlanConfig", "default_ranks"]

_PAIR = re.compile(r"([1-9]\d{0,5}):([1-9]\d{0,5})")
_NAMED = ("coupled", "one-player", "one-trainer", "ranks")


@dataclass(frozen=True)
class PlanConfig:
    """How the work is cut and shared."""

    kind: str = "coupled"
    """`coupled`: every rank plays and trains its own shards; `one-player`: the last rank plays, all others train; `one-trainer`:
    rank 0 trains, all others play; `P:T`, such as `2:1`: P ranks play and T others train; `ranks`: see `players` and `trainers`."""
    players: tuple[int, ...] | None = None
    """The ranks that play, with kind `ranks`. One that is in `trainers` too does both."""
    trainers: tuple[int, ...] | None = None
    """The ranks that train, with kind `ranks`; rank 0 must be one of them."""
    shards: int | None = None
    """Equal groups that the environments are cut in, once and for all: part of what is computed, unlike the number of ranks,
    which only carry them. None: as many as trainers, or players if those are more, in the run that first creates the experiment."""
    share_data: bool = False
    """Trainers exchange rollouts, and minibatches are drawn from one permutation of all shards' samples. Without it each shard
    permutes its own, and a minibatch is the union of equal parts of all shards."""
    lag: int = 0
    """Updates that the weights which collect are behind. 0: players wait for the newest. 1: players collect the next rollouts
    while trainers work on the last ones."""
    correction: Literal["behaviour", "vtrace"] = "behaviour"
    """What makes up for the lag. `behaviour`: probability ratios are taken to the policy that collected; `vtrace`: values and
    advantages are corrected too (Espeholt et al. 2018)."""
    exact: bool = True
    """Compute every shard by itself, so that the bits do not depend on the ranks. False: a rank fuses the shards that it carries
    into one batch; the same algorithm, faster with several shards per rank, equal to rounding only."""
    gradients: Literal["ordered", "ddp"] = "ordered"
    """How gradients are added. `ordered`: in shard order, the same bits on any number of ranks; `ddp`: by PyTorch's
    DistributedDataParallel, during the backward pass, equal to rounding; for large models on several trainers."""

    def __post_init__(self) -> None:
        if self.kind not in _NAMED and not _PAIR.fullmatch(self.kind):
            raise ValueError(
                f"plan.kind is {self.kind!r}: it must be {', '.join(_NAMED)} or P:T, such as 2:1 for 2 players and 1 trainer"
            )
        if self.shards is not None and self.shards < 1:
            raise ValueError(f"plan.shards is {self.shards}: it must be at least 1")
        if self.lag not in (0, 1):
            raise ValueError(f"plan.lag is {self.lag}: it must be 0 or 1")
        for name in ("players", "trainers"):
            given = getattr(self, name)
            if (given is None) == (self.kind == "ranks"):
                wanted = "are needed" if given is None else "are given"
                raise ValueError(f"plan.kind is {self.kind!r}: plan.{name} {wanted}, which go with kind 'ranks' alone")
            if given is not None and (not given or min(given) < 0 or len(set(given)) < len(given)):
                raise ValueError(f"plan.{name} is {list(given)}: it must name ranks, each once")
        if self.trainers is not None and 0 not in self.trainers:
            raise ValueError(f"plan.trainers is {list(self.trainers)}: rank 0 must be one of them, because it writes")


def default_ranks(config: PlanConfig, cores: int) -> int:
    """How many ranks to start where nobody says: those that the plan names, or one per core as far as there are shards.

    A run that is not cut in shards yet would be cut in as many as ranks. Its numbers must not depend on the cores, so it gets the
    fewest that the plan can do with.
    """
    least = _least(config)
    if _fixed(config) or config.shards is None:
        return least
    most = config.shards if config.kind == "coupled" else config.shards + 1
    return max(least, min(cores, most))


def _least(config: PlanConfig) -> int:
    pair = _PAIR.fullmatch(config.kind)
    if pair:
        return int(pair[1]) + int(pair[2])
    if config.players is not None and config.trainers is not None:
        return max(*config.players, *config.trainers) + 1
    return 1 if config.kind == "coupled" else 2


def _fixed(config: PlanConfig) -> bool:
    """Whether the plan says how many ranks there are."""
    return config.kind not in ("coupled", "one-player", "one-trainer")


@dataclass(frozen=True)
class Plan:
    """For every shard, the rank that plays it and the rank that trains on it. Both ascend with the shard."""

    players: tuple[int, ...]
    """`players[shard]` is the rank that collects it."""
    trainers: tuple[int, ...]
    """`trainers[shard]` is the rank that trains on it."""

    @classmethod
    def make(cls, config: PlanConfig, ranks: int) -> "Plan":
        """The plan of `config` on that many ranks; shards are dealt as evenly as can be, in neighbouring runs.

        Raises ValueError when it does not fit.
        """
        playing, training = _roles(config, ranks)
        shards = config.shards or max(len(playing), len(training))
        for what, carrying in (("trainers", training), ("players", playing)):
            if len(carrying) > shards:
                raise ValueError(
                    f"plan.shards is {shards}: {len(carrying)} {what} need at least one shard each; "
                    f"use fewer ranks or a new run with more shards"
                )
        idle = sorted(set(range(ranks)) - {*playing, *training})
        if idle:
            raise ValueError(
                f"plan.players and plan.trainers leave out rank {idle[0]} of {ranks}: each must do something"
            )
        return cls(_deal(shards, playing), _deal(shards, training))

    @property
    def shards(self) -> range:
        """All shards."""
        return range(len(self.players))

    @property
    def playing(self) -> tuple[int, ...]:
        """The ranks that play, ascending."""
        return tuple(sorted(set(self.players)))

    @property
    def training(self) -> tuple[int, ...]:
        """The ranks that train, ascending. The first is rank 0."""
        return tuple(sorted(set(self.trainers)))

    def played_by(self, rank: int) -> tuple[int, ...]:
        """The shards that `rank` collects, ascending."""
        return tuple(shard for shard, player in enumerate(self.players) if player == rank)

    def trained_by(self, rank: int) -> tuple[int, ...]:
        """The shards that `rank` trains on, ascending."""
        return tuple(shard for shard, trainer in enumerate(self.trainers) if trainer == rank)


def _roles(config: PlanConfig, ranks: int) -> tuple[Sequence[int], Sequence[int]]:
    """The ranks that play and those that train."""
    needed, fixed = _least(config), _fixed(config)
    if ranks < needed or (fixed and ranks != needed):
        raise ValueError(
            f"plan.kind is {config.kind!r}: it takes {'exactly' if fixed else 'at least'} {needed} ranks, and there "
            f"{'is' if ranks == 1 else 'are'} {ranks}; use --ranks {needed}"
        )
    if config.players is not None and config.trainers is not None:
        return sorted(config.players), sorted(config.trainers)
    everyone = range(ranks)
    if config.kind == "coupled":
        return everyone, everyone
    pair = _PAIR.fullmatch(config.kind)
    trainers = int(pair[2]) if pair else 1 if config.kind == "one-trainer" else ranks - 1
    return everyone[trainers:], everyone[:trainers]


def _deal(shards: int, ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(ranks[shard * len(ranks) // shards] for shard in range(shards))
