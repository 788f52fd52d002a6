"""Errors of object storage at the start of a run, which are reported in one line. The storage is a folder."""

import shutil
from pathlib import Path

import pytest

from lockstep.experiment.storing import check_stored, fetch_if_missing, remove_stored_after, store_rest
from lockstep.run.folder import RunFolder, RunInUse
from lockstep.run.settings import RunConfig
from lockstep.store.mirror import STORED


def test_run_folder_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    folder = RunFolder.create(tmp_path / "run", {}, {})
    config = RunConfig(store=f"file://{storage}")
    store_rest(folder, config)
    (folder.path / STORED).unlink()
    (folder.path / STORED).mkdir()  # so that the file can't be replaced
    (folder.path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"^run\.store: .*Is a directory") as caught:
        store_rest(folder, config)
    assert "\n" not in str(caught.value)


def stored_run(tmp_path: Path) -> RunConfig:
    """Return the config of a run that is only in the storage."""
    storage = tmp_path / "storage"
    (storage / "run").mkdir(parents=True)
    (storage / "run" / "config.json").write_text("{}")
    return RunConfig(store=f"file://{storage}", name="run", folder=str(tmp_path / "runs"))


def test_run_that_another_process_downloads_is_in_use(tmp_path: Path) -> None:
    config, folder = stored_run(tmp_path), RunFolder(tmp_path / "runs" / "run")
    folder.path.mkdir(parents=True)
    with folder.locked(), pytest.raises(RunInUse):
        fetch_if_missing(config, resume=True)
    assert not [*folder.path.iterdir()]
    fetch_if_missing(config, resume=True)
    assert (folder.path / "config.json").read_text() == "{}"


def test_run_that_was_downloaded_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, folder = stored_run(tmp_path), RunFolder(tmp_path / "runs" / "run")
    lock = RunFolder.lock

    def lock_late(folder: RunFolder) -> None:
        (folder.path / "config.json").write_text("of the other process")
        lock(folder)

    monkeypatch.setattr(RunFolder, "lock", lock_late)
    fetch_if_missing(config, resume=True)
    assert (folder.path / "config.json").read_text() == "of the other process"


def test_other_objects_of_the_storage_are_no_checkpoints(tmp_path: Path) -> None:
    config = stored_run(tmp_path)
    folder = RunFolder.create(tmp_path / "runs" / "run", {}, {})
    (tmp_path / "storage" / "run" / "tb").mkdir()
    (tmp_path / "storage" / "run" / "tb" / "state.json").write_text("{}")
    check_stored(folder, config)


def test_checkpoints_after_the_chosen_iteration_are_removed_from_the_storage(tmp_path: Path) -> None:
    """A run that ends before it has written a checkpoint could otherwise never be resumed: the storage would have a later one."""
    config = stored_run(tmp_path)
    folder, storage = RunFolder.create(tmp_path / "runs" / "run", {}, {}), tmp_path / "storage" / "run" / "checkpoints"
    for number in (10, 20):
        for parent in (folder.path / "checkpoints", storage):
            (parent / f"{number:08d}").mkdir(parents=True)
            (parent / f"{number:08d}" / "state.json").write_text("{}")
    check_stored(folder, config)
    assert len([*storage.glob("*/state.json")]) == 2
    remove_stored_after(folder, config, 10)
    shutil.rmtree(folder.checkpoint(20))
    assert [path.parent.name for path in storage.glob("*/state.json")] == ["00000010"]
    check_stored(folder, config)
    shutil.rmtree(folder.checkpoint(10))
    with pytest.raises(ValueError, match=r"has the checkpoint of iteration 10, and .* only that of 0"):
        check_stored(folder, config)  # the folder is not that of the newest run
