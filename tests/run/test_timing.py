"""Stopwatch: every second is assigned to exactly one phase."""

from time import perf_counter

import pytest

from lockstep.group.solo import Solo
from lockstep.rollout import PLAYER_FIELDS
from lockstep.run import timing
from lockstep.run.timing import Lap, Stopwatch


class FakeClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(name="time")
def fixture_time(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    time = FakeClock()
    monkeypatch.setattr(timing, "perf_counter", time)
    return time


def test_phases_waiting_times_and_the_rest_add_up(time: FakeClock) -> None:
    group = Solo()
    watch = Stopwatch(group)
    lap = Lap(watch)
    time.now += 1  # outside of all phases
    with watch.phase("learn"):
        time.now += 10
        group.clock.waited += 3
        group.clock.transferred += 2
    with watch.phase("rollout"):
        time.now += 4
    passed = lap()
    assert passed == {
        "iter": 15, "rollout": 4, "learn": 5, "sync": 2, "wait": 3, "publish": 0, "record": 1,
    }  # fmt: skip
    assert ["iter", *list(passed)[1:]] == list(PLAYER_FIELDS[1:])
    assert lap() == dict.fromkeys(passed, 0)


def test_laps_are_independent(time: FakeClock) -> None:
    watch = Stopwatch(Solo())
    one, other = Lap(watch), Lap(watch)
    with watch.phase("rollout"):
        time.now += 1
        assert one()["rollout"] == 1  # the phase that continues is counted up to now
        time.now += 2
        assert one()["rollout"] == 2
    assert other()["iter"] == 3


def test_times_are_in_seconds() -> None:
    watch = Stopwatch(Solo())
    lap, begun = Lap(watch), perf_counter()
    while perf_counter() < begun + 0.01:
        pass
    assert 0.01 <= lap()["record"] < 5
