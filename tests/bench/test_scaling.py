"""Speedups, from numbers that were made up, and the experiments that are compared."""

from lockstep.bench.scaling import Scaling, table, weak
from lockstep.bench.training import Training
from lockstep.config.compose import load
from lockstep.resolving import resolve


def runs(*rates: float) -> list[Training]:
    return [Training([{"env_steps": rate * (k + 1), "t_iter": 1.0} for k in range(5)], 1.0, [0]) for rate in rates]


def test_speedups_are_to_one_rank_within_a_repeat() -> None:
    one = runs(1000, 500, 1000)
    found = Scaling({1: one, 2: runs(1500, 750, 1600)}, {1: one, 2: runs(1900, 900, 1900)})
    assert found.speedup("strong", 2).median == 1.5
    assert (found.speedup("weak", 2).least, found.speedup("weak", 2).most) == (1.8, 1.9)
    lines = table(resolve(load(None, None, {"runtime": {"device": "cpu"}}), 1), found)
    assert max(map(len, lines)) <= 80
    assert lines[-3].split() == ["2", "1,500", "1.50", "1.50-1.60", "1,900", "1.90", "1.80-1.90"]


def test_weak_scaling_keeps_what_a_rank_has() -> None:
    config = load(None, None, {"env": {"count": 8}, "plan": {"shards": 2}})
    grown = weak(config, 3)
    assert (grown.env.count, grown.plan.shards, grown.ppo.minibatches) == (24, 6, config.ppo.minibatches)
    assert weak(load(None, None, {}), 3).plan.shards is None
