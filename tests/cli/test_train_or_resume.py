"""`lockstep train --resume` and `lockstep.train(resume=True)`: the same command starts a run, resumes it, and does nothing at its end."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import Finished
from tests.live_runs import digests

import lockstep
from lockstep.cli.main import main
from lockstep.processes.exit_codes import BAD_INPUT, DONE, IN_USE
from lockstep.run.folder import RunFolder

WORDS = ("train", "cartpole", "--resume", "--runtime.compile", "off", "--restarts", "0", "--rollout.steps", "32")
SHARDS = ("--plan.shards", "2", "--total-steps", "512", "--run.checkpoint-every", "1")


@pytest.fixture(name="run", scope="module")
def fixture_run(tmp_path_factory: pytest.TempPathFactory, run_in) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    run_in(folder, *WORDS, *SHARDS, "--name", "run", "--ranks", 1)
    return folder / "runs/run"


@pytest.fixture(name="interrupted")
def fixture_interrupted(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy of the run as if it was stopped after its first iteration."""
    monkeypatch.chdir(tmp_path)
    copy = Path(shutil.copytree(run, tmp_path / "runs/run"))
    shutil.rmtree(copy / "checkpoints/00000002")
    RunFolder(copy).truncate_metrics(1)
    return copy


def test_repeated_command_goes_on_and_then_ends_at_once(
    run: Path, interrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = interrupted.parent.parent / "settings.yaml"
    settings.write_text("run: {name: run, checkpoint_every: 1, total_steps: 512}\nplan: {shards: 2}\n")
    words = [*WORDS, "--config", str(settings), "--ranks", "1"]
    assert main(words) == DONE
    assert capsys.readouterr().out.startswith("resuming run from iteration 1: CartPole-v1, 1 rank, cpu, in runs/run\n")
    assert digests(interrupted) == digests(run)
    assert main(words) == DONE
    assert capsys.readouterr() == ("runs/run is complete: 2 iterations; set a larger --total-steps to continue\n", "")
    assert main([*words, "--seed", "3"]) == BAD_INPUT
    error = "lockstep: run.seed is 3: it was 1 when runs/run was created; set it back, or choose another --name\n"
    assert capsys.readouterr() == ("", error)


def test_program_that_is_started_again_goes_on(run: Path, interrupted: Path) -> None:
    config = lockstep.Run(run).config
    for _ in range(2):
        again = lockstep.train(config=config, name="run", out="runs", resume=True)
        assert (again.path, again.stopped) == (Path("runs/run"), False)
        assert digests(interrupted) == digests(run)
    with pytest.raises(ValueError, match=r"^ppo\.epochs is 3: it was "):
        lockstep.train(config=config, name="run", out="runs", resume=True, ppo={"epochs": 3})


@pytest.fixture(name="train_on_two_hosts")
def fixture_train_on_two_hosts(run_cli, tmp_path: Path):
    """Return `train_on_two_hosts(*words)`, which starts two ranks in two folders: rank 1 sees no run."""

    def train(*words: str) -> list[Finished]:
        (tmp_path / "other").mkdir(exist_ok=True)
        start = partial(run_cli, *WORDS, *SHARDS, *words, "--runtime.rendezvous", f"file://{tmp_path}/meet")
        places = [(tmp_path, "0"), (tmp_path / "other", "1")]
        with ThreadPoolExecutor() as pool:
            ranks = [
                pool.submit(start, cwd=place, env={"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank})
                for place, rank in places
            ]
            return [rank.result() for rank in ranks]

    return train


@pytest.mark.slow
def test_ranks_of_a_launcher_follow_rank_0(train_on_two_hosts, run: Path, interrupted: Path, tmp_path: Path) -> None:
    words = ("--name", "run", "--run.progress", "off")
    first, second = train_on_two_hosts(*words)
    assert (first.rc, second.rc) == (DONE, DONE), (first, second)
    assert digests(interrupted) == digests(run)
    first, second = train_on_two_hosts(*words)
    assert [(rank.rc, rank.stdout) for rank in (first, second)] == [
        (DONE, "runs/run is complete: 2 iterations; set a larger --total-steps to continue\n"),
        (DONE, ""),
    ]
    folder = RunFolder(interrupted)
    with folder.locked():
        first, second = train_on_two_hosts(*words)
    assert (first.rc, second.rc, second.stderr) == (IN_USE, IN_USE, "")
    assert first.stderr == "lockstep: runs/run is in use: another process is training it\n"
    assert not (tmp_path / "other/runs").exists()
