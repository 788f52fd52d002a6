"""Detection of ranks that hang: warnings and faults at given times."""

import os
import time
from types import SimpleNamespace

import pytest

from lockstep.runtime.hang_detector import HangDetector

LINE = "lockstep: rank 2 has made no progress for {} s in {}; it is ended after {} s (see runtime.timeout)\n"


def heartbeat(iteration: int = 3, waiting: bool = False) -> SimpleNamespace:
    """Return a heartbeat that does not change."""
    place = f"stage rollout, iteration {iteration}"
    return SimpleNamespace(
        progress=(0, 0), waiting=waiting, stage="rollout", iteration=iteration, describe_location=lambda: place
    )


def detector(beats: SimpleNamespace, timeout: float, longest: float = 0) -> tuple[HangDetector, float]:
    """Return a detector of this process that has seen `longest` seconds without a heartbeat, and the time of the last heartbeat."""
    found = HangDetector(2, os.getpid(), beats, timeout)  # type: ignore[arg-type]
    now = time.monotonic()
    for seconds in (0, longest):
        now += seconds
        beats.progress = (0, beats.progress[1] + 1)
        assert found.find_fault(now) is None
    return found, now


@pytest.mark.parametrize(
    ("iteration", "timeout", "warned_after", "limit"),
    [(3, 30, 10, 30), (0, 30, 40, 60), (0, 100, 40, 100)],
    ids=["in an iteration", "at the start", "at the start, with a longer timeout"],
)
def test_warning_and_fault_name_the_limit_that_holds(
    iteration: int, timeout: float, warned_after: float, limit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found, start = detector(heartbeat(iteration), timeout)
    place = f"stage rollout, iteration {iteration}"
    assert found.find_fault(start + warned_after - 1) is None
    assert capsys.readouterr().err == ""
    for _ in range(2):
        assert found.find_fault(start + warned_after + 1) is None
    assert capsys.readouterr().err == LINE.format(f"{warned_after + 1:.0f}", place, limit)  # once
    assert found.find_fault(start + limit - 1) is None
    fault = found.find_fault(start + limit + 1)
    assert fault is not None
    assert f"made no progress for {limit + 1} s in {place} (see runtime.timeout)" in fault


def test_progress_and_waiting_begin_the_time_again(capsys: pytest.CaptureFixture[str]) -> None:
    beats = heartbeat()
    found, start = detector(beats, 30)
    beats.progress = (0, 9)
    assert found.find_fault(start + 100) is None
    assert found.find_fault(start + 129) is None
    beats.waiting = True
    assert found.find_fault(start + 1000) is None
    beats.waiting = False
    assert found.find_fault(start + 1029) is None
    assert found.find_fault(start + 1031) is not None


def test_no_warning_about_steps_that_usually_take_long() -> None:
    """A stage that once took 5 s may take 50 times as long, up to the limit, without a warning."""
    found, start = detector(heartbeat(), 300, longest=5)
    assert found.find_fault(start + 240) is None
    assert not found._warned
    found.skip(100)  # in which the watching process did not run
    assert found.find_fault(start + 390) is None
    assert found._warned
    assert found.find_fault(start + 401) is not None
