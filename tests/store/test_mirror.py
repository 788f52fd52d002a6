"""Tests of the copy of a run in object storage. The storage is a folder; test_s3.py uses a server."""

import shutil
from itertools import count
from pathlib import Path

import pytest
import torch

from lockstep.group.solo import Solo
from lockstep.run.checkpoint_writer import CheckpointWriter, remove_old_checkpoints
from lockstep.run.folder import RunFolder
from lockstep.run.manifest import verify
from lockstep.store import mirror as mirror_module
from lockstep.store.fetch import fetch, fetch_named, is_stored
from lockstep.store.mirror import OWNER, Mirror, newest_stored
from lockstep.store.remote import RemoteRun, StoreFailed

KEPT = 2


class Killed(BaseException):
    """The process is killed: no code of the mirror runs after it."""


class MortalRun(RemoteRun):
    """Storage whose client is killed before the write of number `last`, counted from 0."""

    last = -1

    def _count(self) -> None:
        if self.last == 0:
            raise Killed
        self.last -= 1

    def upload(self, path: Path, name: str) -> None:
        self._count()
        super().upload(path, name)

    def write(self, name: str, content: bytes) -> None:
        self._count()
        super().write(name, content)

    def delete(self, name: str) -> None:
        self._count()
        super().delete(name)


class SlowRun(RemoteRun):
    """Storage to which an upload of a file of a checkpoint takes so long that training continues by `KEPT` checkpoints meanwhile."""

    folder: RunFolder

    def upload(self, path: Path, name: str) -> None:
        if name.startswith("checkpoints/"):
            newest = max(self.folder.checkpoints())
            for iteration in range(newest + 1, newest + 1 + KEPT):
                advance(self.folder, iteration)
        super().upload(path, name)


@pytest.fixture(name="store")
def fixture_store(tmp_path: Path) -> str:
    """Address of an empty storage."""
    (tmp_path / "store").mkdir()
    return f"file://{tmp_path}/store"


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs" / "one", {"version": 1}, {"packages": {}})


def advance(folder: RunFolder, iteration: int) -> None:
    """Train to the next checkpoint."""
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write(f'{{"iteration": {iteration}}}\n')
    writer = CheckpointWriter(folder, Solo())
    tensors = {"weights": torch.full((3,), float(iteration))}
    writer.write(iteration, {"agent": tensors, "shard-0000": tensors}, {"seconds": 1.0})
    writer.wait()
    remove_old_checkpoints(folder, KEPT)


def downloaded(store: str, root: Path) -> RunFolder:
    root.mkdir()
    fetch(RemoteRun(store, "one"), root / "one")
    return RunFolder.open(root / "one")


def files(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files of a run."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (OWNER, "stored.txt")
    }


def test_storage_has_the_files_of_the_folder(folder: RunFolder, store: str, tmp_path: Path) -> None:
    mirror = Mirror(folder, RemoteRun(store, "one"))
    mirror.claim()
    for iteration in (1, 2, 3, 4):
        advance(folder, iteration)
        (folder.path / "tb").mkdir(exist_ok=True)
        (folder.path / "tb" / "events").write_text(str(iteration))
        mirror.update()
        assert files(tmp_path / "store" / "one") == files(folder.path)
        assert newest_stored(folder) == iteration
    assert folder.checkpoints() == [3, 4]
    copy = downloaded(store, tmp_path / "elsewhere")
    assert files(copy.path) == files(folder.path)


def test_files_that_do_not_belong_to_the_run_are_not_copied(folder: RunFolder, store: str, tmp_path: Path) -> None:
    advance(folder, 1)
    (tmp_path / "secret").write_text("secret")
    (folder.path / "link.json").symlink_to(tmp_path / "secret")
    (folder.path / "wandb").mkdir()
    (folder.path / "wandb" / "run.wandb").write_text("uploaded by its own client")
    mirror = Mirror(folder, RemoteRun(store, "one"))
    mirror.claim()
    mirror.update()
    assert {name.partition("/")[0] for name in RemoteRun(store, "one").sizes()} == {
        *("checkpoints", "config.json", "environment.json", "metrics.jsonl", OWNER)
    }


def test_only_what_has_changed_is_uploaded(folder: RunFolder, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads: list[str] = []
    upload = RemoteRun.upload
    monkeypatch.setattr(
        RemoteRun, "upload", lambda self, path, name: (uploads.append(name), upload(self, path, name))[1]
    )
    mirror = Mirror(folder, RemoteRun(store, "one"))
    mirror.claim()
    advance(folder, 1)
    mirror.update()
    uploads.clear()
    mirror.update()
    assert uploads == []
    advance(folder, 2)
    mirror.update()
    assert sorted(uploads) == [
        *("checkpoints/00000002/agent.safetensors", "checkpoints/00000002/shard-0000.safetensors", "metrics.jsonl")
    ]


def test_large_files_are_uploaded_again_with_a_checkpoint_after_some_time_and_at_the_end(
    folder: RunFolder, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(mirror_module.time, "monotonic", lambda: now[0])
    mirror, metrics = Mirror(folder, RemoteRun(store, "one")), folder.path / "metrics.jsonl"
    mirror.claim()

    def uploaded_size(everything: bool = False) -> int:
        with metrics.open("a") as file:
            file.write("\n")
        mirror.update(everything)
        return len(mirror._remote.read("metrics.jsonl", 2**30))

    metrics.write_text("x" * 10 * 2**20)
    first = uploaded_size()
    now[0] += 9
    assert uploaded_size() == first
    now[0] += 2
    assert [uploaded_size(), uploaded_size()] == [first + 2] * 2
    advance(folder, 1)
    with_checkpoint = uploaded_size()
    assert with_checkpoint > first + 4
    assert uploaded_size() == with_checkpoint
    assert uploaded_size(everything=True) == with_checkpoint + 2


def test_a_kill_between_any_two_writes_leaves_a_whole_newest_checkpoint_with_its_metrics(
    folder: RunFolder, store: str, tmp_path: Path
) -> None:
    kills = 0
    for iteration in range(1, 9):
        advance(folder, iteration)
        shutil.copytree(tmp_path / "store", tmp_path / "before")
        for allowed in count():
            shutil.rmtree(tmp_path / "store")
            shutil.copytree(tmp_path / "before", tmp_path / "store")
            remote = MortalRun(store, "one")
            mirror = Mirror(folder, remote)
            try:
                mirror.claim()
                remote.last = allowed
                mirror.update()
                break
            except Killed:
                kills += 1
                if iteration > 1 or is_stored(remote):
                    copy = downloaded(store, tmp_path / f"copy-{kills}")
                    newest = max(copy.checkpoints(), default=0)
                    assert newest >= iteration - 1
                    for number in copy.checkpoints():
                        verify(copy.checkpoint(number))
                    assert [row["iteration"] for row in copy.metrics()][:newest] == [*range(1, newest + 1)]
            # a new process completes what is there
            mirror = Mirror(folder, RemoteRun(store, "one"))
            mirror.claim()
            mirror.update()
            assert max(downloaded(store, tmp_path / f"completed-{kills}").checkpoints()) == iteration
        shutil.rmtree(tmp_path / "before")
        assert max(downloaded(store, tmp_path / f"whole-{iteration}").checkpoints()) == iteration
    assert kills >= 50


def test_checkpoints_that_training_removes_during_their_upload_are_stored(
    folder: RunFolder, store: str, tmp_path: Path
) -> None:
    remote = SlowRun(store, "one")
    remote.folder = folder
    mirror = Mirror(folder, remote)
    mirror.claim()
    advance(folder, 1)
    for update in range(4):
        newest = max(folder.checkpoints())
        mirror.update()
        assert newest not in folder.checkpoints()
        assert newest_stored(folder) == newest
        copy = downloaded(store, tmp_path / f"copy-{update}")
        assert copy.checkpoints() == [newest]
        assert verify(copy.checkpoint(newest))["iteration"] == newest
        assert len([*copy.metrics()]) >= newest
        assert not [*folder.path.glob(".*")]


def test_a_file_that_is_removed_during_its_upload_is_not_an_error_of_the_storage(
    folder: RunFolder, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = RemoteRun(store, "one")
    put = remote._files.put_file

    def remove_first(source: str, target: str) -> None:
        Path(source).unlink()
        put(source, target)

    (tmp_path / "file").touch()
    with monkeypatch.context() as context:
        context.setattr(remote._files, "put_file", remove_first)
        with pytest.raises(FileNotFoundError):
            remote.upload(tmp_path / "file", "file")
    (tmp_path / "store" / "two").write_text("in the way of a folder")
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed):
        RemoteRun(store, "two").upload(tmp_path / "file", "file")


def test_nothing_is_deleted_until_a_checkpoint_of_the_folder_is_stored(
    folder: RunFolder, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process starts again, and training removes its checkpoints before their files are linked."""
    before = Mirror(folder, RemoteRun(store, "one"))
    before.claim()
    advance(folder, 1)
    before.update()
    for iteration in (2, 3):
        advance(folder, iteration)

    def removed(checkpoint: Path, root: Path) -> Path:
        raise FileNotFoundError

    again = Mirror(folder, RemoteRun(store, "one"))
    again.claim()
    with monkeypatch.context() as context:
        context.setattr(mirror_module, "_link_files", removed)
        again.update()
    assert "checkpoints/00000001/state.json" in RemoteRun(store, "one").sizes()
    again.update()
    whole = {name for name in RemoteRun(store, "one").sizes() if name.endswith("/state.json")}
    assert whole == {f"checkpoints/{iteration:08d}/state.json" for iteration in (2, 3)}


def test_storage_keeps_the_newest_checkpoint_of_a_run_whose_folder_is_gone(folder: RunFolder, store: str) -> None:
    mirror = Mirror(folder, RemoteRun(store, "one"))
    mirror.claim()
    for iteration in (1, 2):
        advance(folder, iteration)
    mirror.update()
    shutil.rmtree(folder.path)
    with pytest.raises(StoreFailed, match="was removed, renamed or replaced"):
        mirror.update()
    assert not folder.path.exists()
    assert "checkpoints/00000002/state.json" in RemoteRun(store, "one").sizes()


def test_a_run_that_goes_on_from_an_earlier_checkpoint_replaces_the_later_ones(
    folder: RunFolder, store: str, tmp_path: Path
) -> None:
    before = Mirror(folder, RemoteRun(store, "one"))
    before.claim()
    for iteration in (1, 2):
        advance(folder, iteration)
    before.update()
    for path in folder.checkpoint(2).iterdir():
        path.unlink()
    folder.checkpoint(2).rmdir()
    mirror = Mirror(folder, RemoteRun(store, "one"))
    mirror.claim()
    writer = CheckpointWriter(folder, Solo())
    writer.write(2, {"agent": {"weights": torch.zeros(9)}}, {"seconds": 2.0})
    writer.wait()
    mirror.update()
    copy = downloaded(store, tmp_path / "elsewhere")
    assert copy.checkpoints() == [1, 2]
    assert verify(copy.checkpoint(2))["seconds"] == 2.0
    assert not (copy.checkpoint(2) / "shard-0000.safetensors").exists()


def test_an_earlier_process_stops_writing(folder: RunFolder, store: str) -> None:
    earlier, later = (Mirror(folder, RemoteRun(store, "one")) for _ in range(2))
    earlier.claim()
    later.claim()
    advance(folder, 1)
    with pytest.raises(StoreFailed, match="another process has taken over this run"):
        earlier.update()
    assert RemoteRun(store, "one").sizes().keys() == {OWNER}
    later.update()
    assert is_stored(RemoteRun(store, "one"))


def test_incomplete_checkpoints_are_not_downloaded(folder: RunFolder, store: str, tmp_path: Path) -> None:
    mirror = Mirror(folder, RemoteRun(store, "one"))
    mirror.claim()
    advance(folder, 1)
    mirror.update()
    RemoteRun(store, "one").write("checkpoints/00000002/agent.safetensors", b"cut off")
    assert downloaded(store, tmp_path / "elsewhere").checkpoints() == [1]


def test_names_that_leave_the_folder_are_ignored(folder: RunFolder, store: str, tmp_path: Path) -> None:
    mirror = Mirror(folder, RemoteRun(store, "one"))
    mirror.claim()
    advance(folder, 1)
    mirror.update()
    remote = RemoteRun(store, "one")
    for name in (".hidden", "a/b/c/d", "name with spaces", "-x"):
        remote.write(name, b"x")
    assert not {".hidden", "a/b/c/d", "name with spaces", "-x"} & remote.sizes().keys()
    assert files(downloaded(store, tmp_path / "elsewhere").path) == files(folder.path)


def test_download_errors_are_one_line(folder: RunFolder, store: str, tmp_path: Path) -> None:
    for address, problem in (
        (f"{store}/missing", "is not a run: it holds no config.json"),
        ("missing", "is not the address of a run"),
        (f"{store}/..", "is not the address of a run"),
    ):
        with pytest.raises(ValueError, match=problem):
            fetch_named(address, tmp_path / "elsewhere")
    mirror = Mirror(folder, RemoteRun(store, "one"))
    mirror.claim()
    mirror.update()
    assert fetch_named(f"{store}/one/", tmp_path / "elsewhere") == tmp_path / "elsewhere" / "one"
    with pytest.raises(ValueError, match="exists already"):
        fetch_named(f"{store}/one", tmp_path / "elsewhere")
    assert not [*tmp_path.glob("elsewhere/.*")]


def test_nothing_is_deleted_if_the_folder_disappears_during_an_upload(
    folder: RunFolder, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror(folder, RemoteRun(store, "one"))
    mirror.claim()
    for iteration in (1, 2):
        advance(folder, iteration)
    mirror.update()
    before = {name for name in RemoteRun(store, "one").sizes() if name.startswith("checkpoints/")}
    assert {name.split("/")[1] for name in before} == {"00000001", "00000002"}
    (folder.path / "metrics.jsonl").write_text("{}\n")
    upload = RemoteRun.upload

    def disappear(self, *arguments: object) -> None:
        upload(self, *arguments)
        folder.path.rename(folder.path.with_name("elsewhere"))

    monkeypatch.setattr(RemoteRun, "upload", disappear)
    with pytest.raises(StoreFailed):
        mirror.update()
    assert before <= set(RemoteRun(store, "one").sizes())


def test_download_after_one_that_was_killed_while_it_moved_the_files(
    folder: RunFolder, store: str, tmp_path: Path
) -> None:
    mirror = Mirror(folder, RemoteRun(store, "one"))
    mirror.claim()
    for iteration in (1, 2):
        advance(folder, iteration)
    mirror.update()
    target = tmp_path / "again"
    fetch(RemoteRun(store, "one"), target)
    (target / "config.json").unlink()  # it is moved last
    fetch(RemoteRun(store, "one"), target)
    assert (target / "config.json").exists()
    assert RunFolder(target).checkpoints() == folder.checkpoints()
