"""SavedCounters of a run and the metrics of its iterations, for records that were written by hand."""

import numpy as np
import pytest

from lockstep.algorithm.plan import Plan
from lockstep.rollout import PLAYER_FIELDS
from lockstep.run.checkpoint import SavedCounters
from lockstep.run.counters import IterationRecord, RunCounters
from lockstep.run.episodes import EPISODE_ROW
from lockstep.run.records import ShardRecords

COUPLED, ONE_TRAINER = Plan((0, 0), (0, 0)), Plan((1, 1), (0, 0))
LAP = {"iter": 2.0, "rollout": 1.0, "learn": 0.5, "sync": 0.0, "wait": 0.5, "publish": 0.0, "record": 0.0}


def record_of(
    iteration: int = 1, episode_return: float | None = None, episodes: int = 1, faults: int = 0
) -> IterationRecord:
    """Return an iteration of two shards with 60 and 40 steps, in which `episodes` episodes of 5 steps ended on shard 0.

    Environments of shard 1 failed `faults` times.
    """
    trainer = [123.0, 2.0, 0.5, 0.0]
    status = [dict.fromkeys(PLAYER_FIELDS, seconds) | {"iter": 8.0, "wait": 4.0} for seconds in (1.0, 3.0)]
    rows = np.full((2, EPISODE_ROW), np.nan)
    rows[:, :4] = [[60, 0, 0, 0], [40, 0, 0, 0]]
    if episode_return is not None:
        total = episodes * episode_return
        rows[0, :6] = 60, episodes, 5 * episodes, total, episode_return, episode_return
        for number in range(episodes):
            rows[0, 6 + 4 * number : 10 + 4 * number] = number, 0, episode_return, 5
    parts = [
        [*trainer, *entries.values(), *row, count]
        for entries, row, count in zip(status, rows, (0, faults), strict=True)
    ]
    return IterationRecord(iteration, "ab12", ShardRecords(np.array(parts)), LAP, {"policy_loss": -0.25})


def counters_of(plan: Plan = COUPLED, lag: int = 0, frames: int = 1, goal: float | None = None) -> RunCounters:
    return RunCounters(plan, plan.ranks, lag, frames, goal)


def test_metrics_of_two_iterations() -> None:
    counters = counters_of()
    counters.add(record_of())
    assert counters.add(record_of(2, episode_return=30.0)) == {
        "iteration": 2, "env_steps": 200, "fps": 50.0, "seconds": 4.0,
        "t_iter": 2.0, "t_rollout": 1.0, "t_learn": 0.5, "t_sync": 0.0, "t_wait": 0.5, "t_publish": 0.0, "t_record": 0.0,
        "idle": [0.25], "lag": 0,
        "episodes": 1, "return_mean": 30.0, "return_min": 30.0, "return_max": 30.0, "return_mean_20": None,
        "length_mean": 5.0, "policy_loss": -0.25, "digest": "ab12",
    }  # fmt: skip


def test_frames_are_counted_if_a_step_has_several() -> None:
    assert counters_of(frames=4).add(record_of())["frames"] == 400
    assert "frames" not in counters_of().add(record_of())


def test_faults_are_counted_over_the_run_also_after_a_restart() -> None:
    plan = COUPLED
    counters = RunCounters(plan, plan.ranks, 0, 1, None, shows_faults=True)
    assert [counters.add(record_of(faults=faults))["env_faults"] for faults in (0, 2, 0)] == [0, 2, 2]
    restored = counters_of()
    restored.load(SavedCounters.of(counters.state() | {"iteration": 3}))
    assert restored.add(record_of(4))["env_faults"] == 2  # the run is not reproducible, whatever env.on_fault is now
    before = {name: value for name, value in counters.state().items() if name != "env_faults"}
    assert SavedCounters.of(before | {"iteration": 3}).env_faults == 0  # a checkpoint of an earlier version
    with pytest.raises(ValueError, match="env_faults is -1: it must be a whole number of at least 0"):
        SavedCounters.of(counters.state() | {"iteration": 3, "env_faults": -1})


def test_times_of_players_are_means_over_shards() -> None:
    metrics = counters_of(ONE_TRAINER).add(record_of())
    times = {name: value for name, value in metrics.items() if name.startswith("player_t_")}
    assert times == {f"player_t_{name}": 2.0 for name in PLAYER_FIELDS[2:]} | {
        "player_t_iter": 8.0,
        "player_t_wait": 4.0,
    }
    assert metrics["idle"] == [0.25, 0.5]
    assert not any(name.startswith("player_t_") for name in counters_of().add(record_of()))


def test_lag_begins_with_the_second_iteration() -> None:
    counters = counters_of(lag=1)
    assert [counters.add(record_of(iteration))["lag"] for iteration in (1, 2, 3)] == [0, 1, 1]


@pytest.mark.parametrize(("goal", "solved_at"), [(10.0, 200), (10.5, None), (None, None)])
def test_first_time_the_mean_of_20_returns_reaches_the_goal(goal: float | None, solved_at: int | None) -> None:
    counters = counters_of(goal=goal)
    for iteration, episodes in ((1, 19), (2, 1), (3, 20)):
        counters.add(record_of(iteration, 10.0, episodes))
    assert counters.solved_at == solved_at


def test_restored_counters_continue() -> None:
    counters, restored = counters_of(goal=10.0), counters_of(goal=10.0)
    counters.add(record_of(1, 10.0, 20))
    state = counters.state()
    returns = {"last_returns": [10.0] * 20, "return_mean_20": 10.0}
    assert state == {"env_steps": 100, "seconds": 2.0, "solved_at": 100, "env_faults": 0, **returns}
    restored.load(SavedCounters.of({"iteration": 1, **state}))
    assert restored.add(record_of(2, 30.0, 10)) == counters.add(record_of(2, 30.0, 10))
    assert restored.state() == {
        "env_steps": 200,
        "seconds": 4.0,
        "solved_at": 100,
        "env_faults": 0,
        "return_mean_20": 20.0,
        "last_returns": [10.0] * 10 + [30.0] * 10,
    }
