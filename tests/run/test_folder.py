"""Run folder: config, metrics, locks and atomic writes."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.files import write_atomically
from lockstep.run.folder import DRIVEN, JOB_FOLDER, RunFolder, RunInUse
from lockstep.telemetry.loggers import JsonLines


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs" / "one", {"version": 1, "env": {"count": 8}}, {"python": "3"})


def test_created_folder_can_be_opened(folder: RunFolder) -> None:
    assert RunFolder.open(folder.path).tree() == {"version": 1, "env": {"count": 8}}
    assert {path.name for path in folder.path.iterdir()} == {"config.json", "environment.json"}
    assert folder.metrics() == []
    assert folder.checkpoints() == []
    folder.rewrite({"version": 1})
    assert folder.tree() == {"version": 1}


def test_resume_command_names_the_modules_of_environment_and_hooks(folder: RunFolder) -> None:
    assert folder.resume_command() == f"lockstep resume {folder.path}"
    folder.rewrite({"version": 1, "env": {"module": "my_envs"}})
    assert folder.resume_command() == f"lockstep resume {folder.path} --env.module my_envs"
    folder.rewrite({"version": 1, "run": {"hooks": "my_hooks:log"}})
    assert folder.resume_command() == f"lockstep resume {folder.path} --run.hooks my_hooks:log"


def test_existing_folder_is_not_overwritten(folder: RunFolder) -> None:
    with pytest.raises(FileExistsError):
        RunFolder.create(folder.path, {}, {})
    assert folder.tree() == {"version": 1, "env": {"count": 8}}


def test_unwritable_location_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"^run\.folder: .* can't be made \(Not a directory\); choose another --out$"):
        RunFolder.create(tmp_path / "file" / "run", {}, {})


def test_folder_without_config_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ValueError, match=r"is not a run: it holds no config\.json$"):
            RunFolder.open(path)


@pytest.mark.parametrize("content", ["", "{", "[1]", "7"])
def test_broken_config_is_reported_in_one_line(folder: RunFolder, content: str) -> None:
    (folder.path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json (can't be read|holds no object)") as caught:
        folder.tree()
    assert "\n" not in str(caught.value)


def test_interrupted_write_aside_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    write_atomically(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def write_metrics(folder: RunFolder, last: int) -> None:
    logger = JsonLines(folder.path / "metrics.jsonl")
    for iteration in range(1, last + 1):
        logger.write({"iteration": iteration, "loss": 0.1 * iteration})
    logger.close()


@pytest.mark.parametrize("cut", [1, 10, 35])
def test_truncated_last_line_is_ignored(folder: RunFolder, cut: int) -> None:
    write_metrics(folder, 3)
    path = folder.path / "metrics.jsonl"
    content = path.read_text()
    path.write_text(content + content.splitlines()[0][:cut])
    expected = [1, 2, 3, 1] if cut >= len(content.splitlines()[0]) else [1, 2, 3]  # without its newline it is whole too
    assert [row["iteration"] for row in folder.metrics()] == expected


GARBAGE = [
    "7",
    "{broken",
    "",
    "[1]",
    '{"loss": 1}',
    '{"iteration": "1"}',
    '{"iteration": true}',
    "\x00" * 50,
    "[" * 100_000,
]


@pytest.mark.parametrize("garbage", [*map(str.encode, GARBAGE), b"\xff\xfe"])
def test_invalid_line_of_metrics_is_reported_with_its_number(folder: RunFolder, garbage: bytes) -> None:
    write_metrics(folder, 3)
    path = folder.path / "metrics.jsonl"
    first, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + garbage + b"\n" + b"".join(others))
    with pytest.raises(ValueError, match=r"metrics\.jsonl can't be read: line 2 is not an object with") as caught:
        folder.metrics()
    assert "\n" not in str(caught.value)
    assert [row["iteration"] for row in folder.readable_metrics()] == [1, 2, 3]
    folder.truncate_metrics(2)  # and resuming removes neither the line nor those after it
    assert path.read_bytes() == first + garbage + b"\n" + others[0]
    # at the end, after a crash of the host, resuming drops it
    path.write_bytes(first + b"".join(others) + garbage + b"\n")
    folder.truncate_metrics(3)
    assert [row["iteration"] for row in folder.metrics()] == [1, 2, 3]


def test_cut_metrics_removes_later_iterations(folder: RunFolder) -> None:
    write_metrics(folder, 5)
    path = folder.path / "metrics.jsonl"
    first = path.read_text().splitlines()[:3]
    path.write_text(path.read_text() + '{"iteration": 6, "lo')
    folder.truncate_metrics(3)
    assert path.read_text().splitlines() == first  # and leaves what stays as it was, to the last digit
    logger = JsonLines(path)
    logger.write({"iteration": 4})
    logger.close()
    assert [row["iteration"] for row in folder.metrics()] == [1, 2, 3, 4]
    folder.truncate_metrics(0)
    assert folder.metrics() == []


def test_flush_writes_the_line_to_the_file(folder: RunFolder) -> None:
    logger = JsonLines(folder.path / "metrics.jsonl")
    logger.write({"iteration": 1, "digest": "ab"})
    logger.flush()
    assert json.loads((folder.path / "metrics.jsonl").read_text()) == {"iteration": 1, "digest": "ab"}
    logger.close()


def test_checkpoints_are_numbered_folders(folder: RunFolder) -> None:
    for name in ("00000100", "00000020", ".00000030.partial", "notes"):
        (folder.path / "checkpoints" / name).mkdir(parents=True)
    assert folder.checkpoints() == [20, 100]
    assert folder.checkpoint(20).name == "00000020"


def test_checkpoints_that_cannot_be_listed_are_an_error(folder: RunFolder) -> None:
    (folder.path / "checkpoints").touch()
    with pytest.raises(NotADirectoryError, match="checkpoints"):
        folder.checkpoints()


def test_only_one_process_can_lock_a_run(folder: RunFolder) -> None:
    script = "import sys; from pathlib import Path; from lockstep.run.folder import RunFolder; RunFolder(Path(sys.argv[1])).lock()"
    command = [sys.executable, "-c", script, str(folder.path)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0  # gone with its process
    folder.lock()
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "is in use: another process is training it" in second.stderr


def test_in_use_reflects_the_lock(folder: RunFolder) -> None:
    assert folder.in_use() is False
    folder.lock()
    assert RunFolder(folder.path).in_use() is True
    folder.unlock()
    assert folder.in_use() is False


def test_a_driven_run_is_in_use_for_all_but_its_own_ranks(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two starts of its ranks, no process has locked the run itself."""
    (folder.path / JOB_FOLDER).mkdir()
    with RunFolder(folder.path).driven():
        assert folder.in_use() is True
        with pytest.raises(RunInUse, match="is in use: another process will start its ranks again"):
            folder.lock()
        with pytest.raises(RunInUse, match="another process will start its ranks again"), folder.driven():
            pass
        with monkeypatch.context() as patched:
            patched.setenv(DRIVEN, "1")
            with folder.locked():
                pass
    with folder.locked():
        assert folder.in_use() is True
    assert folder.in_use() is False


def test_concurrent_in_use_check_does_not_prevent_locking(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_lock = os.open(folder.path, os.O_RDONLY)
    fcntl.flock(shared_lock, fcntl.LOCK_SH)  # as `in_use` does, for a moment
    monkeypatch.setattr("lockstep.run.lock.time.sleep", lambda seconds: os.close(shared_lock))
    folder.lock()
    assert RunFolder(folder.path).in_use() is True
    folder.unlock()


def test_file_system_without_locks_is_accepted(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unknown)
    folder.lock()
    assert folder.in_use() is None


def test_cut_metrics_does_not_rewrite_the_file_without_need(folder: RunFolder) -> None:
    folder.truncate_metrics(3)  # there is none yet
    write_metrics(folder, 3)
    path = folder.path / "metrics.jsonl"
    before = path.stat()
    folder.truncate_metrics(3)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("end", ["", "\n", '\n{"iteration": 4', "\n\xe4\n7\n", '\n{"loss": 1}\n'])
def test_cut_metrics_removes_a_broken_end(folder: RunFolder, end: str) -> None:
    path = folder.path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n{"iteration": 2}\n{"iteration": 3}' + end)
    folder.truncate_metrics(3)
    assert path.read_text() == '{"iteration": 1}\n{"iteration": 2}\n{"iteration": 3}\n'


def test_cut_metrics_for_lines_of_different_lengths(folder: RunFolder) -> None:
    path = folder.path / "metrics.jsonl"
    rows = [json.dumps({"iteration": 3 * number, "x": "y" * (number * 37 % 50)}) + "\n" for number in range(1, 20)]
    for iteration in range(62):
        path.write_text("".join(rows))
        folder.truncate_metrics(iteration)
        assert path.read_text() == "".join(rows[: iteration // 3])


def test_cut_metrics_does_not_read_the_whole_file(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder.path / "metrics.jsonl"
    path.write_text("".join(f'{{"iteration": {number}}}\n' for number in range(1, 100_001)))
    parsed: list[bytes] = []
    loads = json.loads
    monkeypatch.setattr("lockstep.run.rows.json.loads", lambda line: parsed.append(line) or loads(line))
    folder.truncate_metrics(99_990)
    assert len(parsed) < 50
    assert path.read_text().endswith('\n{"iteration": 99990}\n')


def test_interrupted_cut_metrics_keeps_the_file(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write_metrics(folder, 5)
    path = folder.path / "metrics.jsonl"
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            folder.truncate_metrics(3)
    assert path.read_bytes() == before


def test_a_renamed_file_and_its_folder_are_synced(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        done.append(f"rename {self.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    write_atomically(folder.path / "config.json", b"{}")
    written, renamed_file, synced_folder = done
    assert written.startswith("sync .config.json.")
    assert (renamed_file, synced_folder) == (written.replace("sync", "rename"), "sync one")


def test_run_is_opened_or_created_under_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "runs/one"
    folder, created = RunFolder.open_or_create(path, {"version": 1}, {})
    assert created
    assert folder.in_use()
    with pytest.raises(RunInUse):
        RunFolder.open_or_create(path, {"version": 2}, {})
    folder.unlock()
    folder, created = RunFolder.open_or_create(path, {"version": 2}, {})
    assert (created, folder.in_use(), folder.tree()) == (False, True, {"version": 1})


def test_folder_that_a_killed_process_has_begun_is_used_again(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/environment.json").write_text("{}")
    (tmp_path / "run/.config.json.01.partial").write_text("{")
    folder, created = RunFolder.open_or_create(tmp_path / "run", {"version": 1}, {})
    assert (created, folder.tree()) == (True, {"version": 1})


def test_folder_of_something_else_is_not_made_a_run(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/table.csv").touch()
    with pytest.raises(ValueError, match=r"data exists and is not a run: it holds no config\.json; choose another"):
        RunFolder.open_or_create(tmp_path / "data", {}, {})
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["table.csv"]
