"""Storage that fails while a run is being trained: one line, a fitting exit code, and nothing is called done that is not there."""

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from tests.warm import Finished

from lockstep.cli.main import main
from lockstep.run.folder import RunFolder

TRAIN = (
    *(
        "train",
        "--env",
        "CartPole-v1",
        "--rollout.steps",
        "16",
        "--env.count",
        "4",
        "--plan.shards",
        "2",
        "--ppo.minibatches",
        "2",
    ),
    *(
        "--policy.hidden",
        "4",
        "--run.name",
        "one",
        "--run.loggers",
        "",
        "--run.progress",
        "off",
        "--runtime.compile",
        "off",
    ),
)


@pytest.mark.slow
def test_run_whose_files_cannot_grow_ends_in_one_line_and_resumes_to_the_same_bits(
    run_cli: Callable[..., Finished], tmp_path: Path
) -> None:
    words = (
        *TRAIN,
        "--ranks",
        "1",
        "--restarts",
        "0",
        "--total-steps",
        "1920",
        "--run.checkpoint-every",
        "6",
    )  # 30 iterations
    limited = ("bash", "-c", 'ulimit -f 16; exec "$@"', "bash", sys.executable, "-m")  # metrics.jsonl may have 16 KiB
    done = run_cli(*words, prefix=limited)
    folder = RunFolder(tmp_path / "runs" / "one")
    first, second, last = done.stderr.splitlines()
    assert done.rc == 1
    assert "metrics.jsonl can't be written (File too large): training continues" in first
    assert "can't be written (File too large): training continues until the next one is due; the last" in second
    (*_, saved) = folder.checkpoints()
    assert last.endswith(f"can't be written (File too large); the last checkpoint is that of iteration {saved}")
    assert "done" not in done.stdout
    assert run_cli("resume", "one", "--ranks", "1", "--restarts", "0").rc == 0
    resumed = [row["digest"] for row in folder.metrics()]
    shutil.rmtree(folder.path)
    assert run_cli(*words).rc == 0
    assert [row["digest"] for row in folder.metrics()] == resumed


def test_removed_run_folder_ends_the_run_in_one_line(begin: Callable[..., "Popen[str]"], tmp_path: Path) -> None:
    process = begin(*TRAIN, "--ranks", "2", "--total-steps", "10_000_000", "--run.checkpoint-every", "1")
    folder = RunFolder(tmp_path / "runs" / "one")
    while not folder.checkpoints():
        assert process.poll() is None
        time.sleep(0.01)
    moved = folder.path.rename(tmp_path / "moved")
    output, errors = process.communicate()
    line = "lockstep: runs/one was removed, renamed or replaced while the run was being trained\n"
    assert (process.returncode, errors) == (1, line)
    assert "done" not in output
    assert not folder.path.exists()
    assert RunFolder(moved).checkpoints()


def test_file_that_cannot_be_written_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TRAIN, "--total-steps", "64", "--restarts", "0"]) == 0
    (tmp_path / "runs" / "one" / "evaluation.json").mkdir()
    capsys.readouterr()
    assert main(["eval", "one", "--episodes", "1"]) == 1
    assert capsys.readouterr().err == f"lockstep: {tmp_path}/runs/one/evaluation.json: Is a directory\n"
