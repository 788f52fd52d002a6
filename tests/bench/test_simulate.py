"""Predictions of the speed on many ranks: their properties, from costs that are written here."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from lockstep.algorithm.plan import PlanConfig
from lockstep.bench.simulation.network import NETWORKS, Cluster, Network
from lockstep.bench.simulation.prediction import MOST_RANKS, Prediction, plan_of, predict, predict_all
from lockstep.bench.simulation.table import table
from lockstep.bench.simulation.workload import Costs, Workload
from lockstep.phases import PHASES

SHARDS, ITERATIONS, MANY = 8, 40, 1024
KINDS = ("coupled", "one-trainer", "one-player", "3:2")


def workload(spread: float = 0.2, parameters: int = 10_000, **changes: object) -> Workload:
    """Create a workload of 8 shards, whose times vary by `spread`. A rollout of a shard takes 10 ms, and its update 30 ms."""
    factors = 1 + spread * np.random.default_rng(1).uniform(-1, 1, (4, ITERATIONS))
    costs = Costs(*(factors * np.array([[10e-3], [30e-3], [1e-3], [0.5e-3]])))
    base = Workload(costs, SHARDS, 512.0, parameters, 16.0, 50e-6, small_rows=(37, 16), rollout_bytes=20_000.0)
    return replace(base, **changes)  # type: ignore[arg-type]


def cluster(ranks: int = 1, cores: int = 1, network: Network = NETWORKS["10gbe"]) -> Cluster:
    return Cluster(ranks, cores, network)


def predicted(ranks: int, load: Workload, hosts: Cluster, weak: bool = False, **plan: object) -> Prediction:
    return predict_all(load, PlanConfig(**plan), [ranks], hosts, weak, seed=0)[0]  # type: ignore[arg-type]


def measured(load: Workload) -> float:
    """Return the mean seconds of an iteration that the costs of one rank add up to."""
    costs, step = load.costs, load.updates * load.optimizer_step
    return float((SHARDS * (costs.rollout + costs.learn) + step + costs.publish + costs.record).mean())


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_takes_the_measured_time(kind: str, lag: int) -> None:
    load = workload()
    found = predicted(1, load, cluster(), kind=kind, lag=lag)
    assert found.iteration_seconds == pytest.approx(measured(load))
    assert found.steps_per_second == pytest.approx(SHARDS * load.steps / measured(load))
    assert (found.efficiency, found.bottleneck, found.player_phases) == (1.0, "learn", {})
    assert found.phases["sync"] == found.phases["wait"] == 0.0


@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_efficiency_is_at_most_1_and_falls_with_latency(kind: str, lag: int, weak: bool) -> None:
    ranks = 5
    networks = [Network(latency, 1e9) for latency in (0.0, 1e-4, 1e-3, 1e-2)]
    found = [predicted(ranks, workload(), cluster(1, 1, network), weak, kind=kind, lag=lag) for network in networks]
    assert all(after.efficiency <= before.efficiency for before, after in pairwise(found))
    assert found[0].efficiency < 1.0
    if lag == 0:  # with a lag, the role that is not the slower one hides the latency
        assert found[-1].efficiency < found[0].efficiency
    for row in found:
        assert sum(row.phases[phase] for phase in PHASES) == pytest.approx(row.phases["iter"])
        assert row.iteration_seconds_low <= row.iteration_seconds <= row.iteration_seconds_high
        assert bool(row.player_phases) == (kind != "coupled")


def test_a_slower_network_never_helps() -> None:
    for parameters in (10_000, 2_000_000):
        seconds = [
            predicted(8, workload(parameters=parameters), cluster(1, 1, Network(1e-4, bandwidth))).iteration_seconds
            for bandwidth in (1e11, 1e10, 1e9, 1e8)
        ]
        assert seconds == sorted(seconds)


@pytest.mark.parametrize("weak", [False, True])
def test_ranks_without_network_and_variation_scale_almost_perfectly(weak: bool) -> None:
    """What is left in strong scaling is the work that every rank does: optimizer steps, digests and metrics."""
    found = predicted(8, workload(spread=0.0), cluster(8, 8), weak)
    assert found.stragglers == 0.0
    assert found.hosts == 1
    assert found.efficiency > (0.99 if weak else 0.93)


def test_stragglers_grow_with_the_ranks() -> None:
    load = workload()
    late = [predicted(ranks, load, cluster(), weak=True).stragglers for ranks in (1, 2, 8, 64, MANY)]
    assert late == sorted(late)
    assert late[0] == 0.0
    # the slowest of many ranks takes as long as the slowest measured iteration
    slowest = SHARDS * sum(cost.max() - cost.mean() for cost in (load.costs.rollout, load.costs.learn))
    assert late[-1] == pytest.approx(slowest, rel=0.02)


def test_predictions_can_be_repeated() -> None:
    first, again, other = (
        predict(workload(), PlanConfig(), plan_of(PlanConfig(), 4, SHARDS, False), cluster(), seed)
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first.iteration_seconds != other.iteration_seconds


@pytest.mark.parametrize("lag", [0, 1])
def test_more_ranks_than_cores_share_the_cores(lag: int) -> None:
    load = workload(spread=0.0)
    for kind in ("coupled", "one-trainer"):
        alone = predicted(4, load, cluster(4, 4), kind=kind, lag=lag)
        shared = predicted(4, load, cluster(4, 2), kind=kind, lag=lag)
        assert not alone.more_ranks_than_cores
        assert shared.more_ranks_than_cores
        assert shared.iteration_seconds > alone.iteration_seconds
    two, four = (predicted(ranks, load, cluster(ranks, 2)) for ranks in (2, 4))
    # the cores do the same work, and the ranks take turns at every reduction
    assert two.iteration_seconds < four.iteration_seconds < 1.1 * two.iteration_seconds


def test_lag_lets_players_and_trainers_work_at_the_same_time() -> None:
    load = workload(spread=0.0)
    costs = load.costs
    rollout, learn = SHARDS * costs.rollout[0], SHARDS * costs.learn[0] + load.updates * load.optimizer_step
    after = costs.publish[0] + costs.record[0]
    serial, overlapped = (predicted(2, load, cluster(2, 2), kind="1:1", lag=lag) for lag in (0, 1))
    assert serial.iteration_seconds == pytest.approx(rollout + learn + after, rel=0.01)
    assert overlapped.iteration_seconds == pytest.approx(max(rollout, learn + after), rel=0.01)
    assert overlapped.bottleneck == "learn"
    assert overlapped.player_phases["wait"] == pytest.approx(overlapped.iteration_seconds - rollout, rel=0.01)
    slow = replace(load, costs=replace(costs, rollout=10 * costs.rollout))
    assert predicted(2, slow, cluster(2, 2), kind="1:1", lag=1).bottleneck == "rollout"


def test_uneven_shards_wait_for_the_rank_with_the_most() -> None:
    load = workload(spread=0.0)
    three, four = (predicted(ranks, load, cluster(4, 4)) for ranks in (3, 4))
    assert three.stragglers == pytest.approx((3 - 8 / 3) * (load.costs.rollout[0] + load.costs.learn[0]))
    assert four.stragglers == 0.0


def test_many_players_get_the_agent_later() -> None:
    load = workload(spread=0.0, parameters=2_000_000)
    few, many = (predicted(ranks, load, cluster(), True, kind="one-player") for ranks in (3, 4))
    assert few.player_phases
    assert many.player_phases
    split = [predicted(ranks, load, cluster(), True, kind="one-trainer") for ranks in (3, 300)]
    waits = [
        row.player_phases["iter"] - row.phases["learn"] - row.phases["sync"] - row.player_phases["rollout"]
        for row in split
    ]
    assert waits[1] > waits[0]


@pytest.mark.parametrize("kind", ["coupled", "one-trainer", "one-player"])
def test_as_many_ranks_as_allowed_are_predicted(kind: str) -> None:
    found = predicted(MOST_RANKS, workload(), cluster(64, 64), kind=kind, shards=2 * MOST_RANKS)
    assert (found.ranks, found.hosts) == (MOST_RANKS, 64)
    assert 0 < found.efficiency < 1


def test_table_fits_80_columns() -> None:
    rows = predict_all(workload(), PlanConfig(), [1, 2, 64, MOST_RANKS], cluster(4, 2), True, 0)
    lines = table(rows)
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:5]] == ["1", "2", "64*", "4096*"]
    assert lines[-1] == "*: more ranks than cores per host, so ranks share cores"


@pytest.mark.parametrize(
    ("ranks", "plan", "weak", "message"),
    [
        (MOST_RANKS + 1, {}, True, "--ranks has 4,097: it must be at most 4,096"),
        (9, {}, False, "9 players or trainers need a shard each, and there are 8; use fewer ranks, a larger --plan.shards, or --scale-shards"),
        (10, {"kind": "one-trainer"}, False, "9 players or trainers"),
        (2, {"kind": "2:1"}, False, "takes exactly 3 ranks, and there are 2"),
    ],
)  # fmt: skip
def test_impossible_numbers_of_ranks_are_refused(ranks: int, plan: dict[str, object], weak: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("+", r"\+")):
        plan_of(PlanConfig(**plan), ranks, SHARDS, weak)  # type: ignore[arg-type]
