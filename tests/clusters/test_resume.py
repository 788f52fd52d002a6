"""`lockstep resume --on`: the job resumes the run of the folder."""

import shlex
import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from tests.live_runs import digests

from lockstep.cli.main import main
from lockstep.processes.exit_codes import BAD_INPUT, DONE

pytestmark = pytest.mark.slow

STEPS = 4 * 64
"""Steps of an iteration."""
WORDS = (
    *("train", "cartpole", "--plan.shards", 2, "--env.count", 4, "--rollout.steps", 64, "--runtime.compile", "off"),
    *("--run.checkpoint-every", 1, "--total-steps", 2 * STEPS, "--name", "run", "--ranks", 1),
)
LONGER = ("--total-steps", str(4 * STEPS))


@pytest.fixture(name="complete", scope="module")
def fixture_complete(run_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("complete")
    run_in(folder, *WORDS)
    return folder / "runs/run"


@pytest.fixture(name="run")
def fixture_run(complete: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of a complete run, in a current folder without programs of clusters."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    return shutil.copytree(complete, tmp_path / "runs/run")


def test_script_for_slurm_resumes_the_run(
    complete: Path, run: Path, run_in, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["resume", "run", *LONGER, "--runtime.timeout", "30", "--on", "slurm", "--ranks", "2", "--job", "time=60"]
    assert main(words) == BAD_INPUT
    assert "sbatch is not installed here" in capsys.readouterr().err
    lines = (run / "job/slurm.sh").read_text().splitlines()
    assert "#SBATCH --ntasks=2" in lines
    assert "#SBATCH --time=60" in lines
    (command,) = [line for line in lines if line.startswith("command=(")]
    command_words = shlex.split(command.removeprefix("command=(").removesuffix(")"))
    started = command_words[command_words.index("lockstep") + 1 :]
    assert started == [
        *(
            "resume",
            str(run),
            "--runtime.timeout",
            "30",
            "--runtime.rendezvous",
            f"file://{run}/job/rendezvous",
            *LONGER,
        )
    ]
    shutil.copytree(complete, tmp_path / "runs/local")
    run_in(tmp_path, "resume", "local", *LONGER)
    for _ in range(2):  # a job that is put back into the queue starts them again
        run_in(tmp_path, *started)
        assert digests(run) == digests(tmp_path / "runs/local")
    assert len(digests(run)) == 4


def test_manifest_for_kubernetes_resumes_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--job", "image=registry/lockstep", "claim=runs")
    assert main(["resume", "run", *LONGER, "--on", "kubernetes", "--ranks", "2", *options]) == DONE
    job = yaml.safe_load(capsys.readouterr().out)
    kubernetes_validate.validate(job, "1.37", strict=True)
    assert (job["metadata"]["name"], job["spec"]["completions"]) == ("run", 2)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [
        *("resume", "/lockstep/runs/run", *LONGER),
        *("--runtime.rendezvous", "file:///lockstep/runs/run.rendezvous"),
    ]
    assert not (run / "job").exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--on", "slurm", "--iteration", "1"], "--iteration is 1: with --on, every start resumes from the newest checkpoint; leave it out"),
        (["--on", "slurm", "--ranks", "3"], "plan.shards is 2: 3 trainers need at least one shard each; use fewer ranks or a new run with more shards"),
        (["--on", "slurm", "--ppo.clip", "0.3"], "ppo.clip: it is part of the experiment and stays as it is; "),
        (["--on", "slurm", "--ranks", "2", "--job", "nodes=3"], "--job nodes is 3: there are at most 2 ranks, and every node needs one"),
        (["--job", "time=60"], "--job needs --on with the name of a cluster"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_changes_nothing(
    run: Path, words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "config.json").read_bytes()
    assert main(["resume", "run", *LONGER, *words]) == BAD_INPUT
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"lockstep: {error}")
    assert output.err.count("\n") == 1
    assert (run / "config.json").read_bytes() == before


def test_complete_run_is_not_submitted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", "run", "--on", "slurm"]) == DONE
    assert "is complete: 2 iterations; set a larger --total-steps to continue" in capsys.readouterr().out
    assert not (run / "job").exists()


def test_command_that_a_launcher_has_started_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main(["resume", "run", "--on", "slurm"]) == BAD_INPUT
    assert "torchrun started this process; start the command without it" in capsys.readouterr().err
