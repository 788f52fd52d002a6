"""The status of a run, computed from its metrics."""

import math

import numpy as np
import pytest

from lockstep.phases import PHASES
from lockstep.rollout import PLAYER_FIELDS
from lockstep.run.episodes import EPISODE_ROW, EpisodeWindow
from lockstep.telemetry.status import RecentReturn, RunStatus, number


def row(iteration: int, seconds: float = 1.0, mean: float | None = None, **metrics: object) -> dict[str, object]:
    times = {"t_rollout": 0.5 * seconds, "t_learn": 0.25 * seconds, "t_wait": 0.25 * seconds}
    first = {"iteration": iteration, "fps": 100.0, "seconds": iteration * seconds, "t_iter": seconds}
    return {**first, **times, "return_mean": None, "return_mean_20": mean, **metrics}


def status_after(*rows: dict[str, object]) -> RunStatus:
    status = RunStatus()
    for metrics in rows:
        status.append(metrics)
    status.update()
    return status


def test_phases_have_the_order_of_all_tables() -> None:
    assert PHASES == ("rollout", "learn", "sync", "wait", "publish", "record")
    assert ("stop", "iter", *PHASES) == PLAYER_FIELDS


def test_status_without_metrics() -> None:
    status = status_after()
    assert (status.newest, status.best, status.mean_return, status.history) == ({}, None, None, [])
    assert (status.steps_per_second, status.idle, status.shares("t_")) == (None, [], {})
    assert status.seconds_left(9) is None


def test_current_and_best_return() -> None:
    status = status_after(row(1, return_mean=80.0, episodes=1), row(2, mean=10.0), row(3, mean=30.0), row(4, mean=20.0))
    assert (status.mean_return, status.best) == (20.0, 30.0)  # 80 is not a mean over 20 episodes
    assert status.history == [80.0, 10.0, 30.0, 20.0]
    early = row(1, return_mean=80.0, episodes=3), row(2, return_mean=20.0, episodes=1), row(3, episodes=0)
    assert status_after(*early).mean_return == 65.0
    assert status_after(*early).history == [80.0, 65.0, 65.0]


def test_recent_return_is_the_mean_that_training_prints() -> None:
    window, recent = EpisodeWindow(), RecentReturn()
    for iteration, count in enumerate((2, 0, 3, 14, 1, 9, 0)):
        shard = np.full((1, EPISODE_ROW), np.nan)
        returns = [10.0 * iteration + episode for episode in range(count)]
        shard[0, :6] = 8, count, count, sum(returns), min(returns, default=0), max(returns, default=0)
        for episode, total in enumerate(returns):
            shard[0, 6 + 4 * episode : 10 + 4 * episode] = episode, 0, total, 1
        assert recent.add(window.add(shard)) == pytest.approx(window.mean)
    assert recent.mean == window.full_mean


def test_shares_of_phases_speed_and_remaining_time() -> None:
    status = status_after(*(row(iteration, idle=[0.25, 0.75]) for iteration in range(1, 5)))
    assert status.shares("t_") == pytest.approx(
        {"rollout": 0.5, "learn": 0.25, "wait": 0.25, "sync": 0, "publish": 0, "record": 0}
    )
    assert status.shares("player_t_") == {}
    assert status.idle == pytest.approx([0.25, 0.75])
    assert status.steps_per_second == pytest.approx(100)
    assert status.seconds_left(10) == pytest.approx(6)
    assert status.seconds_left(2) == 0


def test_recent_iterations_have_more_weight() -> None:
    rows = [row(iteration, 1.0, fps=100.0) for iteration in range(1, 40)]
    rows += [row(iteration, 1.0, fps=200.0, idle=[0.5]) for iteration in range(40, 80)]
    at_once, in_turn = status_after(*rows), RunStatus()
    for metrics in rows:
        in_turn.append(metrics)
        in_turn.update()
    assert at_once.steps_per_second == pytest.approx(200)
    assert in_turn.steps_per_second == pytest.approx(200, abs=5)
    assert in_turn.seconds_left(100) == pytest.approx(21)


def test_status_after_a_change_of_the_number_of_ranks() -> None:
    status = status_after(row(1, idle=[0.5, 0.5]))
    status.append(row(2, idle=[0.1, 0.2, 0.3]))
    status.update()
    assert len(status.idle) == 3


def test_long_history_is_subsampled_evenly() -> None:
    status = status_after(*(row(iteration, mean=float(iteration)) for iteration in range(1, 10_001)))
    assert 100 <= len(status.history) <= 256
    assert status.history == sorted(status.history)
    assert status.history[-1] > 9_900
    assert (status.mean_return, status.best) == (10_000, 10_000)


@pytest.mark.parametrize("broken", [None, "x", math.nan, math.inf, [], {}])
def test_metrics_that_are_not_finite_numbers_are_ignored(broken: object) -> None:
    assert number(broken) is None
    status = status_after(dict.fromkeys(row(1), broken) | {"idle": broken}, row(2, mean=3.0))
    assert status.mean_return == 3.0
    assert status.steps_per_second == pytest.approx(100)
