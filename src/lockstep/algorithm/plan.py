"""Plans: for every shard, the rank that plays it and the rank that trains on it.

    coupled       rank 0: plays and trains 0, 1      rank 1: plays and trains 2, 3
    one-trainer   rank 0: trains 0 … 3               ranks 1, 2: play 0, 1 | 2, 3
    one-player    ranks 0, 1: train 0, 1 | 2, 3      rank 2: plays 0 … 3
    P:T           ranks 0 … T-1 train                ranks T … T+P-1 play
    ranks         plan.players and plan.trainers list the ranks; a rank may be in both

A plan is an immutable value. The code that uses it does not depend on the number of ranks, and the assignment of shards to
ranks does not change the results of a run (with `exact: false` or `gradients: ddp`: up to rounding). Rank 0 trains in
every plan, because it writes the files of the run.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["NAMED_KINDS", "Plan", "PlanConfig", "default_ranks"]

_PLAYERS_TO_TRAINERS = re.compile(r"([1-9]\d{0,5}):([1-9]\d{0,5})")
_MAX_RANKS = 1_000_000
NAMED_KINDS = ("coupled", "one-player", "one-trainer", "ranks")
"""Values of `plan.kind` other than P:T."""


@dataclass(frozen=True)
class PlanConfig:
    """Assignment of the work to ranks, and how gradients are added."""

    kind: str = "coupled"
    """`coupled`: every rank plays and trains its own shards; `one-player`: the last rank plays, all others train; `one-trainer`:
    rank 0 trains, all others play; `P:T`, such as `2:1`: P ranks play and T others train; `ranks`: as `players` and `trainers` list."""
    players: tuple[int, ...] | None = None
    """Ranks that play, with kind `ranks`. A rank may also be in `trainers`."""
    trainers: tuple[int, ...] | None = None
    """Ranks that train, with kind `ranks`. Rank 0 must be one of them."""
    shards: int | None = None
    """Number of equal groups of environments. Results depend on it, and not on the number of ranks. None: the number of trainers or of
    players, whichever is larger, of the run that creates the experiment."""
    share_data: bool = False
    """Exchange rollouts between trainers, and draw minibatches from one permutation of the samples of all shards. Off: every shard
    permutes its own samples, and contributes an equal part to each minibatch."""
    lag: int = 0
    """Number of updates that the collecting weights are behind. 0: players wait for the newest weights. 1: players collect the next
    rollouts while trainers train on the previous ones."""
    correction: Literal["behavior", "vtrace"] = "behavior"
    """Correction for the lag. `behavior`: the denominator of PPO's probability ratio is the policy that collected. `vtrace`: advantages and
    value targets are those of V-trace (Espeholt et al. 2018), and the denominator is the policy at the start of the update."""
    exact: bool = True
    """Compute every shard separately, so that the bits do not depend on the ranks. Off: a rank computes all its shards as one batch;
    the same algorithm, faster with several shards per rank, with results that are equal up to rounding."""
    gradients: Literal["ordered", "ddp"] = "ordered"
    """Addition of gradients. `ordered`: in shard order, with the same bits on any number of ranks; `ddp`: by PyTorch's
    DistributedDataParallel during the backward pass, equal up to rounding, for large models on several trainers."""
    preempt: float | None = None
    """Fraction of the shards that must have finished their rollouts for those of slower ranks to end early (DD-PPO, Wijmans et al. 2020:
    0.6). Steps that are not taken have no weight. Results then depend on the speed of the ranks. None: all ranks finish."""
    preempt_after: float = 0.25
    """Fraction of a rollout that every rank collects, with `preempt`."""

    def __post_init__(self) -> None:
        if self.kind not in NAMED_KINDS and not _PLAYERS_TO_TRAINERS.fullmatch(self.kind):
            raise ValueError(
                f"plan.kind is {self.kind!r}: it must be {', '.join(NAMED_KINDS)} or P:T, such as 2:1 for 2 players and 1 trainer"
            )
        if self.shards is not None and not 1 <= self.shards <= 1_000_000:
            raise ValueError(f"plan.shards is {self.shards}: it must be between 1 and 1,000,000")
        if self.lag not in (0, 1):
            raise ValueError(f"plan.lag is {self.lag}: it must be 0 or 1")
        self._check_preemption()
        for name in ("players", "trainers"):
            ranks = getattr(self, name)
            if (ranks is None) == (self.kind == "ranks"):
                problem = "needs" if ranks is None else "does not take"
                raise ValueError(f"plan.kind is {self.kind!r}: it {problem} plan.{name}")
            if ranks is not None and (not ranks or min(ranks) < 0 or len(set(ranks)) < len(ranks)):
                raise ValueError(f"plan.{name} is {list(ranks)}: it must name ranks, each once")
            if ranks is not None and max(ranks) >= _MAX_RANKS:
                raise ValueError(f"plan.{name} has {max(ranks)}: ranks are below {_MAX_RANKS:,}")
        if self.trainers is not None and 0 not in self.trainers:
            raise ValueError(
                f"plan.trainers is {list(self.trainers)}: rank 0 must be one of them, because it writes the run folder"
            )

    def _check_preemption(self) -> None:
        for name in ("preempt", "preempt_after"):
            fraction = getattr(self, name)
            if fraction is not None and not 0 < fraction <= 1:
                raise ValueError(f"plan.{name} is {fraction:g}: it must be above 0 and at most 1")


def default_ranks(config: PlanConfig, cores: int) -> int:
    """Return the number of ranks to start if the user gives none.

    It is the number that the plan names if it names one, else one rank per core, but no more than the shards can
    occupy. If `plan.shards` is None, the number of ranks would decide the number of shards. Results must not depend on
    the number of cores, so the smallest number of ranks that the plan allows is used.
    """
    min_ranks = _min_ranks(config)
    if _has_fixed_ranks(config) or config.shards is None:
        return min_ranks
    max_ranks = config.shards if config.kind == "coupled" else config.shards + 1
    return max(min_ranks, min(cores, max_ranks))


def _min_ranks(config: PlanConfig) -> int:
    pair = _PLAYERS_TO_TRAINERS.fullmatch(config.kind)
    if pair:
        return int(pair[1]) + int(pair[2])
    if config.players is not None and config.trainers is not None:
        return max(*config.players, *config.trainers) + 1
    return 1 if config.kind == "coupled" else 2


def _has_fixed_ranks(config: PlanConfig) -> bool:
    return config.kind not in ("coupled", "one-player", "one-trainer")


@dataclass(frozen=True)
class Plan:
    """Assignment of shards to ranks: the player and the trainer of every shard. Both tuples are in ascending order."""

    players: tuple[int, ...]
    """Player by shard: `players[shard]` is the rank that collects the shard."""
    trainers: tuple[int, ...]
    """Trainer by shard: `trainers[shard]` is the rank that trains on the shard."""

    @classmethod
    def make(cls, config: PlanConfig, ranks: int) -> "Plan":
        """Create the plan of `config` for this number of ranks. Players and trainers get consecutive shards, in numbers that differ by
        at most 1.

        Raises ValueError if the number of ranks does not fit the kind of the plan, if there are fewer shards than players or
        trainers, or if a rank neither plays nor trains.
        """
        playing, training = _roles(config, ranks)
        shards = config.shards or max(len(playing), len(training))
        for role, role_ranks in (("trainers", training), ("players", playing)):
            if len(role_ranks) > shards:
                raise ValueError(
                    f"plan.shards is {shards}: {len(role_ranks)} {role} need at least one shard each; "
                    f"use fewer ranks or a new run with more shards"
                )
        idle = sorted(set(range(ranks)) - {*playing, *training})
        if idle:
            raise ValueError(
                f"plan.players and plan.trainers leave out rank {idle[0]} of {ranks}: every rank must play or train"
            )
        return cls(_split_shards(shards, playing), _split_shards(shards, training))

    @property
    def shards(self) -> range:
        """Indices of all shards."""
        return range(len(self.players))

    @property
    def ranks(self) -> int:
        """The number of ranks. None of them is idle."""
        return max(*self.players, *self.trainers) + 1

    @property
    def playing(self) -> tuple[int, ...]:
        """Ranks that play, in ascending order."""
        return tuple(sorted(set(self.players)))

    @property
    def training(self) -> tuple[int, ...]:
        """Ranks that train, in ascending order. The first is rank 0."""
        return tuple(sorted(set(self.trainers)))

    def played_by(self, rank: int) -> tuple[int, ...]:
        """Return the shards that `rank` collects, in ascending order."""
        return tuple(shard for shard, player in enumerate(self.players) if player == rank)

    def trained_by(self, rank: int) -> tuple[int, ...]:
        """Return the shards that `rank` trains on, in ascending order."""
        return tuple(shard for shard, trainer in enumerate(self.trainers) if trainer == rank)


def _roles(config: PlanConfig, ranks: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the ranks that play and those that train. Raises ValueError if the plan does not allow this number of ranks."""
    min_ranks, fixed = _min_ranks(config), _has_fixed_ranks(config)
    if ranks < min_ranks or (fixed and ranks != min_ranks):
        raise ValueError(
            f"plan.kind is {config.kind!r}: it takes {'exactly' if fixed else 'at least'} {min_ranks} ranks, and there "
            f"{'is' if ranks == 1 else 'are'} {ranks}; use --ranks {min_ranks}"
        )
    if config.players is not None and config.trainers is not None:
        return sorted(config.players), sorted(config.trainers)
    all_ranks = range(ranks)
    if config.kind == "coupled":
        return all_ranks, all_ranks
    pair = _PLAYERS_TO_TRAINERS.fullmatch(config.kind)
    trainer_count = int(pair[2]) if pair else 1 if config.kind == "one-trainer" else ranks - 1
    return all_ranks[trainer_count:], all_ranks[:trainer_count]


def _split_shards(shards: int, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the rank of every shard: consecutive shards, whose numbers per rank differ by at most 1."""
    return tuple(ranks[shard * len(ranks) // shards] for shard in range(shards))
