"""TrainingRun on a disk that is full, slow or lost."""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import pytest
from tests.run.training import prepared, run_training, trained

from lockstep.algorithm.update import Update
from lockstep.files import create_file
from lockstep.run import checkpoint_writer as checkpoints
from lockstep.run import run as runs
from lockstep.run.checkpoint import Checkpoint, CheckpointFailed
from lockstep.run.folder import FolderLost

pytestmark = pytest.mark.usefixtures("restored_signals")


def with_full_disk(monkeypatch: pytest.MonkeyPatch, iterations: set[int]) -> None:
    """Let no file be created for the checkpoints of `iterations`."""

    def create(path: Path) -> BinaryIO:
        if path.parent.name in {f".{iteration:08d}.partial" for iteration in iterations}:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create_file(path)

    monkeypatch.setattr(checkpoints, "create_file", create)


def test_failed_checkpoint_is_left_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_full_disk(monkeypatch, {4})
    assert trained(tmp_path / "run", last=7).folder.checkpoints() == [2, 6, 7]
    assert capsys.readouterr().err == (
        "lockstep: the checkpoint of iteration 4 can't be written (No space left on device): "
        "training continues until the next one is due; the last checkpoint is that of iteration 2\n"
    )
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


def test_training_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained_on, waits, fsync = threading.Event(), [], os.fsync
    components, run = prepared(tmp_path / "run", last=4)
    record = run.record

    def slow(descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            waits.append(trained_on.wait(60))
        fsync(descriptor)

    def record_and_go_on(iteration: int, losses: Mapping[str, float]) -> None:
        if iteration == 3:
            assert run.folder.checkpoints() == []
            trained_on.set()
        record(iteration, losses)

    monkeypatch.setattr(os, "fsync", slow)
    monkeypatch.setattr(run, "record", record_and_go_on)
    run_training(components, run)
    assert waits
    assert all(waits)
    assert run.folder.checkpoints() == [2, 4]


@pytest.mark.parametrize(("failing", "last", "kept"), [((2,), 5, [4, 5]), ((2, 4), 5, []), ((5,), 5, [2, 4])])
def test_checkpoint_that_does_not_reach_the_disk_is_reported(
    failing: tuple[int, ...],
    last: int,
    kept: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error is reported when the next checkpoint is due, which is then written; two in a row, or that of the last one, end the run."""
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().parent.name in {
            f".{number:08d}.partial" for number in failing
        }:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    components, run = prepared(tmp_path / "run", last=last)
    if len(kept) == 2 and kept[-1] == last:
        run_training(components, run)
        assert run.saved == last
    else:
        with pytest.raises(CheckpointFailed, match=rf"checkpoint of iteration {failing[-1]} can't be written \(Input/"):
            run_training(components, run)
    assert run.folder.checkpoints() == kept
    assert [row["iteration"] for row in run.folder.metrics()] == list(range(1, last + 1))
    assert ("checkpoint of iteration 2 can't be written" in capsys.readouterr().err) == (2 in failing)
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


def test_error_leaves_the_checkpoint_before_it_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    components, run = prepared(tmp_path / "run", last=9)
    failed, update, fsync = threading.Event(), type(components.update).__call__, os.fsync

    def fail_at_3(self: Update, *words: object) -> Mapping[str, float]:
        if words[1] == 3:
            failed.set()
            raise ZeroDivisionError
        return update(self, *words)

    def slow(descriptor: int) -> None:
        assert threading.current_thread() is threading.main_thread() or failed.wait(60)
        fsync(descriptor)

    monkeypatch.setattr(type(components.update), "__call__", fail_at_3)
    monkeypatch.setattr(os, "fsync", slow)
    with pytest.raises(ZeroDivisionError):
        run_training(components, run)
    assert Checkpoint(run.folder.checkpoint(2)).state["iteration"] == 2
    assert run.last_checkpoint() == "the last checkpoint is that of iteration 2"


@pytest.mark.parametrize(("full", "last", "done"), [({4, 6}, 9, 6), ({5}, 5, 5)])
def test_run_ends_if_no_checkpoint_can_be_written(
    full: set[int], last: int, done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_full_disk(monkeypatch, full)
    components, run = prepared(tmp_path / "run", last=last)
    with pytest.raises(
        CheckpointFailed, match=rf"of iteration {done} can't be written \(No space left on device\); the "
    ):
        run_training(components, run)
    assert (run.done, run.saved) == (done, 4 if full == {5} else 2)
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


def test_checkpoint_needs_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = os.write
    components, run = prepared(tmp_path / "run", last=7)

    def full_at_4(descriptor: int, content: bytes) -> int:
        if run.done == 4:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", full_at_4)
    run_training(components, run)
    assert run.folder.checkpoints() == [2, 6, 7]
    assert [row["iteration"] for row in run.folder.metrics()] == [1, 2, 3, 4, 5, 6, 7]
    assert len(capsys.readouterr().err.splitlines()) == 2


def remove_wholly(path: Path) -> None:
    """Remove a folder into which a thread writes."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("remove", [remove_wholly, lambda path: path.rename(path.with_name("moved"))])
def test_lost_folder_ends_the_run_and_is_not_made_again(
    remove: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_PERIOD", 0.0)
    components, run = prepared(tmp_path / "run", last=99)
    record = run.record

    def record_and_remove(iteration: int, losses: Mapping[str, float]) -> None:
        if iteration == 3:
            remove(run.folder.path)
        record(iteration, losses)

    monkeypatch.setattr(run, "record", record_and_remove)
    with pytest.raises(FolderLost, match=r"run was removed, renamed or replaced while the run was being trained$"):
        run_training(components, run)
    assert run.done == 4
    assert not run.folder.path.exists()
