"""Tests of the process that copies a run: an error is reported, does not end training, and is retried."""

import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.live_runs import wait_for
from tests.store.test_mirror import advance

from lockstep.config import Config
from lockstep.experiment.execute import save_config
from lockstep.run.folder import RunFolder
from lockstep.store.mirror import newest_stored
from lockstep.store.remote import StoreFailed
from lockstep.telemetry import storing
from lockstep.telemetry.storing import StoreSidecar

pytestmark = pytest.mark.slow


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> RunFolder:
    """A run whose storage is the folder `store`."""
    folder = RunFolder.create(tmp_path / "runs" / "one", {}, {})
    config = Config()
    save_config(folder, replace(config, run=replace(config.run, store=f"file://{tmp_path}/store", name="one")))
    return folder


@pytest.mark.parametrize("complete", [False, True])
def test_an_unusable_storage_is_reported_and_used_again(
    folder: RunFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str], complete: bool
) -> None:
    (tmp_path / "store").write_text("in the way")
    sidecar = StoreSidecar(folder, "ADDRESS", lambda: complete)
    try:
        advance(folder, 1)
        wait_for(lambda: (sidecar.flush(), "trying again" in capfd.readouterr().err)[1], "a message")
    finally:
        if complete:
            with pytest.raises(
                StoreFailed, match="the checkpoint of iteration 1 was not stored in ADDRESS, only that of 0"
            ):
                sidecar.close()
        else:
            sidecar.close()
            assert "the checkpoint of iteration 1 was not stored in ADDRESS, only that of 0" in capfd.readouterr().err

    (tmp_path / "store").unlink()
    sidecar = StoreSidecar(folder, "ADDRESS", lambda: complete)
    advance(folder, 2)
    sidecar.close()
    assert newest_stored(folder) == 2
    assert (tmp_path / "store" / "one" / "checkpoints" / "00000002" / "state.json").is_file()


def test_a_process_that_was_killed_is_started_again(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(storing, "_RESTART_AFTER", 0.0)
    sidecar = StoreSidecar(folder, "ADDRESS", lambda: True)
    sidecar._process.kill()
    sidecar._process.wait()
    sidecar.flush()
    assert "trying again" in capfd.readouterr().err
    advance(folder, 1)
    wait_for(lambda: (sidecar.flush(), newest_stored(folder))[1] == 1, "a copy")
    sidecar.close()


def test_a_process_that_cannot_be_started_is_reported_and_started_later(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(storing, "_RESTART_AFTER", 0.0)
    with monkeypatch.context() as full:
        full.setattr(subprocess, "Popen", refuse)
        with pytest.raises(StoreFailed, match=r"the process that copies the run can't be started: .*unavailable"):
            StoreSidecar(folder, "ADDRESS", lambda: True)
    sidecar = StoreSidecar(folder, "ADDRESS", lambda: True)
    sidecar._process.kill()
    sidecar._process.wait()
    with monkeypatch.context() as full:
        full.setattr(subprocess, "Popen", refuse)
        sidecar.flush()
        sidecar.flush()
    assert capfd.readouterr().err.count("trying again") == 2
    advance(folder, 1)
    sidecar.close()
    assert newest_stored(folder) == 1
