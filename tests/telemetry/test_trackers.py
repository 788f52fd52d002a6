"""The data that trackers receive from a run folder."""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from lockstep.run.folder import RunFolder
from lockstep.telemetry import trackers
from lockstep.telemetry.trackers import check_trackers, track


class FakeTracker:
    """Tracker that stores everything that it receives."""

    created: ClassVar[list["FakeTracker"]] = []

    def __init__(
        self, folder: RunFolder, name: str, state: trackers._TrackerState, print_line: Callable[[str], None]
    ) -> None:
        self.identity, self.existed, self.steps, self.videos, self.open = state.identity, state.exists, [], [], True
        self.evaluations = []
        self.created.append(self)

    def write(self, metrics: Mapping[str, object]) -> None:
        self.steps.append(metrics["env_steps"])

    def write_evaluation(self, row: Mapping[str, object]) -> None:
        self.evaluations.append(row["iteration"])

    def log_video(self, video: Path, name: str, caption: str, env_steps: int) -> None:
        self.videos.append((video.name, name, caption, env_steps))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.open = False


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setitem(trackers.TRACKERS, "fake", FakeTracker)
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    monkeypatch.setattr(FakeTracker, "created", [])
    return RunFolder.create(tmp_path / "run", {}, {})


def add(folder: RunFolder, *steps: int, rest: str = "") -> None:
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps({"iteration": step, "env_steps": step}) + "\n" for step in steps) + rest)


def track_once(folder: RunFolder) -> FakeTracker:
    context = SimpleNamespace(training_ended=threading.Event(), print_line=print)
    context.training_ended.set()  # so `track` reads the folder once and returns
    track(folder, "fake", "run", context)  # type: ignore[arg-type]
    return FakeTracker.created[-1]


def test_a_resumed_run_continues_the_same_run_and_sends_nothing_twice(folder: RunFolder) -> None:
    add(folder, 10, 20, 30, rest='{"env_ste')
    first = track_once(folder)
    assert (first.existed, first.steps, first.open) == (False, [10, 20, 30], False)
    (folder.path / "metrics.jsonl").write_text("")
    add(folder, 10, 20, 30, 40)  # resumed from an earlier checkpoint, then trained further than before
    second = track_once(folder)
    assert (second.identity, second.existed, second.steps) == (first.identity, True, [40])


def test_videos_are_sent_once(folder: RunFolder) -> None:
    add(folder, 5, 10)
    (folder.path / "videos").mkdir()
    for name in ("iteration-00000005-first.mp4", "iteration-00000005.mp4", "iteration-00000006-last.mp4.partial"):
        (folder.path / "videos" / name).write_bytes(b"")
    assert track_once(folder).videos == [("iteration-00000005-first.mp4", "videos/first", "iteration 5", 5)]
    assert track_once(folder).videos == []


def test_evaluations_are_sent_once(folder: RunFolder) -> None:
    path = folder.path / "evaluations.jsonl"
    path.write_text('{"iteration": 2}\n{"iteration": 4}\n')
    assert track_once(folder).evaluations == [2, 4]
    path.write_text('{"iteration": 2}\n{"iteration": 4}\n{"iteration": 6}\n')  # evaluated again after a resume
    assert track_once(folder).evaluations == [6]


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    check_trackers(("tensorboard",))
    with pytest.raises(ValueError, match=r"run\.loggers contains 'trackio'.*lockstep-rl\[track\]"):
        check_trackers(("tensorboard", "trackio"))
