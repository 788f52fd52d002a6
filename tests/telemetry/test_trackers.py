"""What trackers are given of a run, from its folder."""

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


class Noted:
    """A tracker that notes."""

    made: ClassVar[list["Noted"]] = []

    def __init__(self, folder: RunFolder, name: str, own: trackers._Own, tell: Callable[[str], None]) -> None:
        self.identity, self.known, self.steps, self.films, self.open = own.identity, own.known, [], [], True
        self.made.append(self)

    def write(self, metrics: Mapping[str, object]) -> None:
        self.steps.append(metrics["env_steps"])

    def show(self, film: Path, name: str, caption: str) -> None:
        self.films.append((film.name, name, caption))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.open = False


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setitem(trackers.TRACKERS, "noted", Noted)
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    monkeypatch.setattr(Noted, "made", [])
    return RunFolder.create(tmp_path / "run", {}, {})


def add(folder: RunFolder, *steps: int, rest: str = "") -> None:
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps({"env_steps": step}) + "\n" for step in steps) + rest)


def follow(folder: RunFolder) -> Noted:
    errand = SimpleNamespace(over=threading.Event(), tell=print)
    errand.over.set()  # training has ended: one look is the last
    track(folder, "noted", "run", errand)  # type: ignore[arg-type]
    return Noted.made[-1]


def test_a_run_that_goes_on_is_the_same_and_sees_nothing_twice(folder: RunFolder) -> None:
    add(folder, 10, 20, 30, rest='{"env_ste')
    first = follow(folder)
    assert (first.known, first.steps, first.open) == (False, [10, 20, 30], False)
    (folder.path / "metrics.jsonl").write_text("")
    add(folder, 10, 20, 30, 40)  # gone back to a checkpoint, and beyond
    second = follow(folder)
    assert (second.identity, second.known, second.steps) == (first.identity, True, [40])


def test_films_are_shown_once(folder: RunFolder) -> None:
    add(folder, 10)
    (folder.path / "videos").mkdir()
    for name in ("iteration-00000005-first.mp4", "iteration-00000005.mp4", "iteration-00000006-last.mp4.partial"):
        (folder.path / "videos" / name).write_bytes(b"")
    assert follow(folder).films == [("iteration-00000005-first.mp4", "videos/first", "iteration 5")]
    assert follow(folder).films == []


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    check_trackers(("tensorboard",))
    with pytest.raises(ValueError, match=r"run\.loggers has 'trackio'.*lockstep-rl\[track\]"):
        check_trackers(("tensorboard", "trackio"))
