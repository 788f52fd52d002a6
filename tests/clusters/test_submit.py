"""`lockstep train --on`: what is refused before anything is submitted, and what is left behind."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from lockstep.cli.main import main
from lockstep.clusters.job import Submission, read_submission, write_submission
from lockstep.processes.exit_codes import BAD_INPUT
from lockstep.run.folder import JOB_FOLDER, RunFolder

WORDS = ("train", "cartpole", "--on", "slurm")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--ranks", "2"], "--on is 'slurm': sbatch is not installed here; run the command on a host of the cluster"),
        (["--ranks", "3", "--plan.shards", "2"], "plan.shards is 2: 3 trainers need at least one shard each; use fewer ranks or a new run with more shards"),
        (["--ranks", "2", "--job", "nodes"], "--job is 'nodes': it must be KEY=VALUE, such as time=08:00:00"),
        (["--ranks", "2", "--job", "nodes=3"], "--job nodes is 3: there are at most 2 ranks, and every node needs one"),
        (["--env.id", "Nope-v1"], "env.id is 'Nope-v1': "),
        (["--resume"], "--resume needs --name, the name of the run that it starts or resumes"),
        (["--ranks", "2:4", "--env.per-rank", "2"], "env.per_rank is 2: with --ranks MIN:MAX, set env.count instead"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_no_folder(
    words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([*WORDS, *words]) == BAD_INPUT
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"lockstep: {error}")
    assert output.err.count("\n") == 1
    assert list((tmp_path / "runs").glob("*")) == []


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--on", "slurm"], "--on is 'slurm': sbatch is not installed here; run the command on a host of the cluster"),
        (["--on", "slurm", "--job", "array=1"], "--job array: lockstep sets this option of sbatch itself; leave it out"),
        (["--on", "slurm", "--over", "plan.kind=coupled,1:1"], "--on is 'slurm': the runs of this sweep need 1 to 2 ranks; set --ranks, the same for all"),
        (["--on", "slurm", "--trials", "2", "--search", "ppo.epochs=int(1,2)"], "--on is 'slurm': a search starts runs when others have ended; use --on ray, or start it in a job"),
        (["--on", "kubernetes"], "--on kubernetes needs --job image=…, such as image=registry/lockstep:0.1"),
        (["--job", "time=5"], "--job needs --on with the name of a cluster"),
    ],
)  # fmt: skip
def test_bad_input_of_a_sweep_is_one_line_and_leaves_no_folder(
    words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["sweep", "cartpole", "--over", "run.seed=1..2", "--plan.shards", "2", *words]) == BAD_INPUT
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"lockstep: {error}"
    assert list((tmp_path / "runs").glob("*")) == []


def test_documented_commands_are_complete_but_for_slurm(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    lines = [line for line in (root / "docs/launching.md").read_text().splitlines() if "--on slurm " in line]
    commands = [line for line in lines if line.startswith("lockstep train ")]
    assert len(commands) == 2
    for line in commands:
        assert main(line.split()[1:]) == BAD_INPUT
        assert "sbatch is not installed here" in capsys.readouterr().err


def test_refused_submission_keeps_the_files_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "runs/one"
    (path / JOB_FOLDER).mkdir(parents=True)
    write_submission(RunFolder(path), Submission("slurm", "12"))
    assert main([*WORDS, "--name", "one", "--resume"]) == BAD_INPUT
    assert "squeue is not installed here" in capsys.readouterr().err
    assert read_submission(RunFolder(path)) == Submission("slurm", "12")
    assert main([*WORDS, "--name", "one"]) == BAD_INPUT
    assert "runs/one exists; choose another --name, or continue with --resume" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_ray_that_is_not_installed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "cartpole", "--on", "ray"]) == BAD_INPUT
    assert capsys.readouterr() == (
        "",
        "lockstep: --on is 'ray': Ray is not installed; pip install 'lockstep-rl[ray]'\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_options_of_jobs_need_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "cartpole", "--job", "time=5"]) == BAD_INPUT
    assert capsys.readouterr().err == "lockstep: --job needs --on with the name of a cluster\n"


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"on": 1, "id": "2"}', b"\xff", b"[" * 100_000])
def test_broken_record_of_a_submission_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / JOB_FOLDER).mkdir()
    (tmp_path / JOB_FOLDER / "job.json").write_bytes(content)
    assert read_submission(RunFolder(tmp_path)) is None
