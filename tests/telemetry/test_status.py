"""How a run is going, from its metrics."""

import math

import pytest

from lockstep.rollout import STATUS
from lockstep.telemetry.status import PHASES, RunStatus, number


def row(iteration: int, seconds: float = 1.0, mean: float | None = None, **others: object) -> dict[str, object]:
    times = {"t_rollout": 0.5 * seconds, "t_learn": 0.25 * seconds, "t_wait": 0.25 * seconds}
    first = {"iteration": iteration, "fps": 100.0, "seconds": iteration * seconds, "t_iter": seconds}
    return {**first, **times, "return_mean": None, "return_mean_20": mean, **others}


def of(*rows: dict[str, object]) -> RunStatus:
    standing = RunStatus()
    for one in rows:
        standing.take(one)
    standing.settle()
    return standing


def test_phases_are_those_that_are_measured() -> None:
    assert STATUS[2:] == PHASES


def test_nothing_yet() -> None:
    standing = of()
    assert (standing.newest, standing.best, standing.mean_return, standing.history) == ({}, None, None, [])
    assert (standing.steps_per_second, standing.idle, standing.shares("t_")) == (None, [], {})
    assert standing.seconds_left(9) is None


def test_return_and_the_best_one() -> None:
    standing = of(row(1, return_mean=80.0), row(2, mean=10.0), row(3, mean=30.0), row(4, mean=20.0))
    assert (standing.mean_return, standing.best) == (20.0, 30.0)  # 80 is of a few episodes
    assert standing.history == [80.0, 10.0, 30.0, 20.0]
    assert of(row(1, return_mean=80.0)).mean_return == 80.0


def test_shares_speed_and_the_time_left() -> None:
    standing = of(*(row(iteration, idle=[0.25, 0.75]) for iteration in range(1, 5)))
    assert standing.shares("t_") == pytest.approx(
        {"rollout": 0.5, "learn": 0.25, "wait": 0.25, "sync": 0, "publish": 0, "record": 0}
    )
    assert standing.shares("player_t_") == {}
    assert standing.idle == pytest.approx([0.25, 0.75])
    assert standing.steps_per_second == pytest.approx(100)
    assert standing.seconds_left(10) == pytest.approx(6)
    assert standing.seconds_left(2) == 0


def test_what_was_long_ago_counts_less() -> None:
    whole = [row(iteration, 1.0, fps=100.0) for iteration in range(1, 40)]
    whole += [row(iteration, 1.0, fps=200.0, idle=[0.5]) for iteration in range(40, 80)]
    at_once, in_turn = of(*whole), RunStatus()
    for one in whole:
        in_turn.take(one)
        in_turn.settle()
    assert at_once.steps_per_second == pytest.approx(200)
    assert in_turn.steps_per_second == pytest.approx(200, abs=5)
    assert in_turn.seconds_left(100) == pytest.approx(21)


def test_ranks_may_change() -> None:
    standing = of(row(1, idle=[0.5, 0.5]))
    standing.take(row(2, idle=[0.1, 0.2, 0.3]))
    standing.settle()
    assert len(standing.idle) == 3


def test_a_long_history_is_thinned_out_evenly() -> None:
    standing = of(*(row(iteration, mean=float(iteration)) for iteration in range(1, 10_001)))
    assert 100 <= len(standing.history) <= 256
    assert standing.history == sorted(standing.history)
    assert standing.history[-1] > 9_900
    assert (standing.mean_return, standing.best) == (10_000, 10_000)


@pytest.mark.parametrize("broken", [None, "x", math.nan, math.inf, [], {}])
def test_metrics_that_are_no_numbers_do_no_harm(broken: object) -> None:
    assert number(broken) is None
    standing = of(dict.fromkeys(row(1), broken) | {"idle": broken}, row(2, mean=3.0))
    assert standing.mean_return == 3.0
    assert standing.steps_per_second == pytest.approx(100)
