"""Errors of object storage at the start of a run, which are reported in one line. The storage is a folder."""

from pathlib import Path

import pytest

from lockstep.experiment.storing import store_rest
from lockstep.run.folder import RunFolder
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
