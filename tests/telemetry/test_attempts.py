"""The log of starts and ends in a run folder."""

import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep.algorithm.non_finite import NonFinite
from lockstep.group.group import RankLost
from lockstep.run import stop
from lockstep.run.environment import processor_type
from lockstep.run.folder import RunFolder
from lockstep.telemetry.attempts import Attempt, read_starts, record_attempt, record_fault


def train_to(attempt: Attempt, done: int, stopped: bool = False) -> None:
    attempt.run = SimpleNamespace(done=done, stopped=stopped)  # type: ignore[assignment]


def fail_after(attempt: Attempt, done: int, error: Exception) -> None:
    train_to(attempt, done)
    raise error


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {}, {})


def test_log_of_a_run_that_was_stopped_failed_and_finished(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    before = datetime.now(UTC)
    with record_attempt(folder, 0, 9, 2, "coupled") as attempt:
        monkeypatch.setattr(stop, "_asked", signal.SIGTERM)
        train_to(attempt, 3, stopped=True)
    monkeypatch.undo()
    for error, iteration, ranks, plan in (
        (NonFinite("the gradient's norm is\n nan"), 3, 3, "one-trainer"),
        (KeyError("wheel"), 5, 1, "coupled"),
    ):
        with pytest.raises(type(error)), record_attempt(folder, iteration, 9, ranks, plan) as attempt:
            fail_after(attempt, 5, error)
    with record_attempt(folder, 5, 9, 1, "coupled") as attempt:
        train_to(attempt, 9)
    starts = read_starts(folder)
    assert [(start.how, start.why, start.done) for start in starts] == [
        ("stopped", "SIGTERM", 3),
        ("failed", "the gradient's norm is nan", 5),
        ("failed", "KeyError: 'wheel'", 5),
        ("done", "", 9),
    ]
    assert [(start.iteration, start.last, start.ranks, start.plan) for start in starts[:2]] == [
        (0, 9, 2, "coupled"), (3, 9, 3, "one-trainer")
    ]  # fmt: skip
    assert {"torch", "numpy"} < starts[0].packages.keys()
    assert starts[0].processor == processor_type(portable=False)
    assert starts[0].host == os.uname().nodename
    assert (before - starts[0].begun).total_seconds() < 0.001
    assert all(start.seconds is not None and start.seconds >= 0 for start in starts)


def test_start_without_an_end_is_unfinished(folder: RunFolder) -> None:
    assert read_starts(folder) == []
    with record_attempt(folder, 0, 9, 1, "coupled"):
        (running,) = read_starts(folder)
        assert (running.how, running.ended, running.done, running.seconds) == (None, None, None, None)
    path = folder.path / "starts.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], lines[0], lines[1]]))  # killed, then started again
    assert [start.how for start in read_starts(folder)] == [None, "done"]


def test_broken_lines_are_skipped(folder: RunFolder) -> None:
    with record_attempt(folder, 0, 9, 1, "coupled"):
        pass
    expected = read_starts(folder)
    path = folder.path / "starts.jsonl"
    for broken in ("", "{", "7", "null", '{"event": "end"}', '{"event": "start", "time": "x"}', '"\\ud800"', "\0"):
        path.write_text(f"{broken}\n{path.read_text()}{broken}\n")
    path.write_bytes(path.read_bytes() + b"\xff\n")
    assert read_starts(folder) == expected


def test_full_disk_does_not_hide_the_error_of_the_run(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(NonFinite), record_attempt(folder, 0, 9, 1, "coupled") as attempt:
        monkeypatch.setattr(os, "fsync", raise_disk_full) or fail_after(attempt, 5, NonFinite("too large"))
    assert read_starts(folder)[0].how is None


def test_launcher_adds_the_cause_of_a_loss(folder: RunFolder) -> None:
    """Rank 0 knows only that it has lost a rank, and may not have recorded anything."""
    lost = RankLost("rank 1", "rollout", "its process has ended")
    with pytest.raises(RankLost), record_attempt(folder, 0, 9, 2, "coupled") as attempt:
        fail_after(attempt, 3, lost)
    record_fault(folder, "a rank lost another process", 4, reported=True)
    assert read_starts(folder)[-1].why == str(lost)
    record_fault(folder, "rank 1 made no progress for 5 s", 4, reported=False)
    (start,) = read_starts(folder)
    assert (start.how, start.why, start.done) == ("failed", "rank 1 made no progress for 5 s", 3)
    with record_attempt(folder, 3, 9, 2, "coupled") as attempt:
        train_to(attempt, 9)
    record_fault(folder, "rank 1 was killed", 9, reported=False)
    assert [start.how for start in read_starts(folder)] == ["failed", "done"]
