"""Prediction of the time of an iteration, the efficiency and the bottleneck of a plan, from the measured cost of its shards."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.algorithm.plan import Plan, PlanConfig
from lockstep.algorithm.publishers import publishers
from lockstep.bench.simulation.network import Cluster, Rows, message_seconds, reduction_seconds
from lockstep.bench.simulation.timeline import Computation, Delays, play
from lockstep.bench.simulation.workload import Workload
from lockstep.phases import PHASES
from lockstep.randomness import stream

__all__ = ["MOST_RANKS", "Prediction", "plan_of", "predict", "predict_all"]

MOST_RANKS = 4096
"""Largest number of ranks. Beyond that, the messages between all pairs of trainers alone make a plan useless."""
_ITERATIONS = 256
"""Iterations that are simulated at least."""
_DRAWS = 2_000_000
"""Draws from the measured iterations per prediction, at most, beyond `_ITERATIONS` for every rank."""
_TAILS = (10, 90)
"""Percentiles of the time of an iteration."""


@dataclass(frozen=True)
class Prediction:
    """Predicted speed of one number of ranks."""

    ranks: int
    hosts: int
    plan: str
    """Value of `plan.kind`."""
    players: int
    trainers: int
    shards: int
    more_ranks_than_cores: bool
    steps_per_second: float
    """Environment steps per second."""
    iteration_seconds: float
    """Mean time of an iteration."""
    iteration_seconds_low: float
    """10th percentile of the time of an iteration."""
    iteration_seconds_high: float
    """90th percentile."""
    efficiency: float
    """Steps per second per rank, divided by those of one rank."""
    bottleneck: str
    """The part that takes most of an iteration: a phase, or `stragglers`."""
    phases: dict[str, float]
    """Seconds per iteration of rank 0 by phase, as `t_*` in the metrics."""
    player_phases: dict[str, float]
    """Seconds per iteration of the ranks that only play, as `player_t_*`; empty if there are none."""
    stragglers: float
    """Seconds per iteration between the mean and the last rank, at the end of rollouts and of updates."""


def plan_of(config: PlanConfig, ranks: int, shards: int, weak: bool) -> Plan:
    """Return the plan of a number of ranks. One rank plays and trains, whatever the plan. With `weak`, every player has `shards` shards.

    Raises ValueError if the plan does not fit the number of ranks.
    """
    if ranks > MOST_RANKS:
        raise ValueError(f"--ranks has {ranks:,}: it must be at most {MOST_RANKS:,}")
    if ranks == 1:
        config = dataclasses.replace(config, kind="coupled", players=None, trainers=None)
    roles = Plan.make(dataclasses.replace(config, shards=None), ranks)
    needed = max(len(roles.playing), len(roles.training))
    if weak:
        shards *= len(roles.playing)
    if needed > shards:
        raise ValueError(
            f"--ranks has {ranks:,}: {needed:,} players or trainers need a shard each, and there are {shards:,}; use fewer ranks, "
            "a larger --plan.shards, or --scale-shards"
        )
    return Plan.make(dataclasses.replace(config, shards=shards), ranks)


def predict_all(
    workload: Workload, config: PlanConfig, ranks: Sequence[int], cluster: Cluster, weak: bool, seed: int
) -> list[Prediction]:
    """Predict every number of ranks. The efficiency is relative to one rank with all shards or, with `weak`, with those of one player.

    Raises ValueError as `plan_of` does, before anything is computed.
    """
    shards = config.shards or workload.shards
    plans = [plan_of(config, count, shards, weak) for count in ranks]
    alone = predict(workload, config, plan_of(config, 1, shards, weak), cluster, seed)
    predictions = [predict(workload, config, plan, cluster, seed) for plan in plans]
    return [
        dataclasses.replace(found, efficiency=found.steps_per_second / (found.ranks * alone.steps_per_second))
        for found in predictions
    ]


def predict(workload: Workload, config: PlanConfig, plan: Plan, cluster: Cluster, seed: int) -> Prediction:
    """Predict one plan. Its efficiency is 1.

    Every rank gets the measured iterations in an order of its own, drawn from `seed` without replacement, so that each rank has the
    measured mean. A phase ends when the last rank has finished it.
    """
    overlapped = config.lag > 0 and bool(set(plan.playing) - set(plan.training))
    computation = _computation(workload, plan, cluster, overlapped, seed)
    delays = _delays(workload, plan, cluster, config.lag)
    trains = np.isin(plan.playing, plan.training)
    rank0_plays = plan.playing[0] == 0
    timeline = play(computation, delays, trains, rank0_plays, config.lag)
    durations = np.diff(timeline.ends, prepend=0.0)
    seconds = float(timeline.ends[-1]) / len(timeline.ends)
    rank0 = {
        "rollout": float(computation.rollouts[:, 0].mean()) if rank0_plays else 0.0,
        "learn": float(computation.updates[:, 0].mean()),
        "sync": delays.reduce + delays.receive + (delays.send if rank0_plays else 0.0),
        "publish": float(computation.publish.mean()) + delays.publish,
        "record": float(computation.record.mean()),
    }
    only_play = ~trains
    players = {}
    if only_play.any():
        players = {"rollout": float(computation.rollouts[:, only_play].mean()), "sync": delays.send}
    low, high = np.percentile(durations, _TAILS)
    return Prediction(
        ranks=plan.ranks,
        hosts=cluster.host(plan.ranks - 1) + 1,
        plan=config.kind if plan.ranks > 1 else "coupled",
        players=len(plan.playing),
        trainers=len(plan.training),
        shards=len(plan.shards),
        more_ranks_than_cores=cluster.core_share(range(plan.ranks)) > 1,
        steps_per_second=workload.steps * len(plan.shards) / seconds,
        iteration_seconds=seconds,
        iteration_seconds_low=float(low),
        iteration_seconds_high=float(high),
        efficiency=1.0,
        bottleneck=_bottleneck(rank0, players, timeline.stragglers, overlapped),
        phases=_with_wait(rank0, seconds),
        player_phases=_with_wait(players, seconds) if players else {},
        stragglers=timeline.stragglers,
    )


def _computation(workload: Workload, plan: Plan, cluster: Cluster, overlapped: bool, seed: int) -> Computation:
    """Draw the computation of every rank. Ranks that share cores slow each other down."""
    costs = workload.costs
    draws = _draws(len(costs.rollout), plan.ranks, seed)
    played, trained = (np.array(list(Counter(ranks).values())) for ranks in (plan.players, plan.trainers))
    rollouts = costs.rollout[draws[:, plan.playing]] * played
    updates = costs.learn[draws[:, plan.training]] * trained + workload.updates * workload.optimizer_step
    if overlapped:  # players and trainers compute at the same time
        share = cluster.core_share(range(plan.ranks))
        rollouts, updates = rollouts * share, updates * share
    else:
        rollouts = _on_shared_cores(rollouts, plan.playing, cluster)
        updates = _on_shared_cores(updates, plan.training, cluster)
    return Computation(rollouts, updates, costs.publish[draws[:, 0]], costs.record[draws[:, 0]])


def _draws(count: int, ranks: int, seed: int) -> NDArray[np.int64]:
    """Return numbers of measured iterations `[iterations, ranks]`: one or several permutations for every rank.

    One rank has the measured iterations in their order. If there are more than can be simulated, they are drawn with replacement.
    """
    if ranks == 1:
        return np.arange(count)[:, None]
    generator = stream(seed, "simulate", ranks)
    iterations = -(-_ITERATIONS // count) * count
    if iterations * ranks > max(_DRAWS, _ITERATIONS * ranks):
        return generator.integers(count, size=(max(_ITERATIONS, _DRAWS // ranks), ranks))
    tiled = np.tile(np.arange(count)[:, None], (1, ranks))
    return np.concatenate([generator.permuted(tiled, axis=0) for _ in range(iterations // count)])


def _on_shared_cores(work: NDArray[np.float64], ranks: Sequence[int], cluster: Cluster) -> NDArray[np.float64]:
    """Return the seconds until each rank has done its `work`, `[iterations, ranks]`, with the cores of its host for all ranks there.

    If there are more ranks than cores, all of them are done when the cores have done the sum, or the rank with the most work has done its own.
    """
    hosts = np.array([cluster.host(rank) for rank in ranks])
    firsts = np.flatnonzero(np.diff(hosts, prepend=-1))
    sizes = np.diff(firsts, append=len(ranks))
    together = np.add.reduceat(work, firsts, axis=1) / cluster.cores_per_host
    together[:, sizes <= cluster.cores_per_host] = 0.0
    return np.maximum(work, np.repeat(together, sizes, axis=1))


def _delays(workload: Workload, plan: Plan, cluster: Cluster, lag: int) -> Delays:
    players, trainers = plan.playing, plan.training
    total, own = len(plan.shards), min(Counter(plan.trainers).values())

    def reduction(numbers: int, itemsize: int, sums: bool = True) -> float:
        return reduction_seconds(cluster, trainers, Rows(total, own, numbers, itemsize), sums)

    gradients = workload.updates * reduction(workload.gradient_numbers, workload.itemsize)
    others = sum(reduction(numbers, 8) for numbers in workload.small_rows)
    records = reduction(workload.record_numbers, 8, sums=False)
    moved = [
        (player, trainer) for player, trainer in zip(plan.players, plan.trainers, strict=True) if player != trainer
    ]
    send = receive = latency = 0.0
    if moved and workload.rollout_bytes:
        send, receive, latency = _rollout_seconds(workload, cluster, moved)
    arrive, publish = _agent_seconds(workload, plan, cluster, lag)
    return Delays(
        send=send,
        latency=latency,
        receive=receive,
        reduce=gradients + others + records,
        publish=publish,
        arrive=np.array([arrive.get(player, 0.0) for player in players]),
    )


def _rollout_seconds(
    workload: Workload, cluster: Cluster, moved: Sequence[tuple[int, int]]
) -> tuple[float, float, float]:
    """Return the seconds in which a player sends its rollouts, those in which a trainer receives its rollouts, and the latency.

    `moved` has the player and the trainer of every shard that changes its rank.
    """
    per_player, per_trainer = (max(Counter(ranks).values()) for ranks in zip(*moved, strict=True))
    sharing = cluster.most_per_host(sorted({trainer for _, trainer in moved}))
    costs = [message_seconds(cluster, player, trainer, workload.rollout_bytes, sharing) for player, trainer in moved]
    if all(cluster.in_memory(pair) for pair in moved):
        return 0.0, 0.0, max(latency for _, latency in costs)  # players write their rollouts where trainers read them
    busy, latency = max(costs)
    return per_player * busy, per_trainer * busy, latency


def _agent_seconds(workload: Workload, plan: Plan, cluster: Cluster, lag: int) -> tuple[dict[int, float], float]:
    """Return the seconds until every player has the agent, which players pass on as a tree, and those in which rank 0 sends it."""
    size = workload.parameters * workload.itemsize
    arrive: dict[int, float] = {}
    busy: dict[int, float] = {}
    for player, source in publishers(plan, lag > 0).items():
        seconds, latency = message_seconds(cluster, source, player, size)
        busy[source] = busy.get(source, 0.0) + seconds
        # a source sends to one player after the other, once it has the agent itself
        before = arrive.get(source, 0.0) if source not in plan.training else 0.0
        arrive[player] = before + busy[source] + latency
    return arrive, max((seconds for source, seconds in busy.items() if source in plan.training), default=0.0)


def _bottleneck(rank0: dict[str, float], players: dict[str, float], stragglers: float, overlapped: bool) -> str:
    """Return the largest part of an iteration. If players and trainers compute at the same time, it is a part of the slower role."""
    if not players:
        parts = rank0
    elif not overlapped:
        parts = rank0 | {"rollout": players["rollout"]}
    else:
        parts = players if sum(players.values()) > sum(rank0.values()) else rank0
    parts = {**parts, "stragglers": stragglers}
    return max(parts, key=lambda name: parts[name])


def _with_wait(parts: dict[str, float], seconds: float) -> dict[str, float]:
    """Return all phases of a role in an iteration of `seconds`: what is left is `wait`."""
    waited = max(0.0, seconds - sum(parts.values()))
    return {"iter": seconds, **{phase: waited if phase == "wait" else parts.get(phase, 0.0) for phase in PHASES}}
