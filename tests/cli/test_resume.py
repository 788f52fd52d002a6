"""Resuming a run that another process was training until just before."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import lockstep
from lockstep.algorithm.plan import Plan
from lockstep.cli.main import main
from lockstep.cli.work import resume_under_launcher
from lockstep.experiment.execute import open_run
from lockstep.run.folder import RunFolder
from lockstep.runtime.rank_info import RankInfo

COMPLETE = "runs/first is complete: 2 iterations; set a larger --total-steps to continue\n"


@pytest.fixture(name="run", scope="module")
def fixture_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run with checkpoints of both of its iterations."""
    path = tmp_path_factory.mktemp("trained")
    settings = {"rollout": {"steps": 32}, "run.progress": "off", "run.checkpoint_every": 1, "runtime.compile": "off"}
    lockstep.train(env="CartPole-v1", total_steps=512, **{"run.folder": str(path), "run.name": "first", **settings})
    return path / "first"


@pytest.fixture(name="finished_elsewhere")
def fixture_finished_elsewhere(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Run whose last checkpoint another process writes just before it releases the lock."""
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(Path("runs/first"))
    shutil.copytree(run, folder.path)
    last, aside = folder.checkpoint(2), tmp_path / "last"
    last.rename(aside)
    lock = RunFolder.lock

    def late(self: RunFolder) -> None:
        if aside.exists():
            aside.rename(last)
        lock(self)

    monkeypatch.setattr(RunFolder, "lock", late)
    return folder


def resume_by_command(folder: RunFolder) -> None:
    assert main(["resume", "first"]) == 0


def resume_by_api(folder: RunFolder) -> None:
    assert not lockstep.resume("first").stopped


def resume_by_launcher(folder: RunFolder) -> None:
    _, config = open_run(folder.path)
    plan = Plan.make(config.plan, 1)
    assert resume_under_launcher(RankInfo(0, 1, 0, 1), folder, config, config, plan, None, None) == 0


@pytest.mark.parametrize("resume", [resume_by_command, resume_by_api, resume_by_launcher])
def test_checkpoint_is_chosen_after_the_lock_is_acquired(
    resume: Callable[[RunFolder], None], finished_elsewhere: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = (finished_elsewhere.path / "metrics.jsonl").read_bytes()
    resume(finished_elsewhere)
    assert capsys.readouterr().out == ("" if resume is resume_by_api else COMPLETE)
    assert (finished_elsewhere.path / "metrics.jsonl").read_bytes() == metrics
    assert finished_elsewhere.checkpoints() == [1, 2]


def test_config_changed_by_another_process_is_refused(finished_elsewhere: RunFolder) -> None:
    from lockstep.experiment.start import prepare_resume

    _, before = open_run(finished_elsewhere.path)
    config = finished_elsewhere.path / "config.json"
    config.write_text(config.read_text().replace('"total_steps": 512', '"total_steps": 1024'))
    with pytest.raises(ValueError, match=r"config\.json was changed by another process meanwhile: call resume again$"):
        prepare_resume(finished_elsewhere, before, before, None, 1)


def test_run_in_use_is_refused_before_its_checkpoints_are_read(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import sys; from pathlib import Path; from lockstep.run.folder import RunFolder; "
        "RunFolder(Path(sys.argv[1])).lock(); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert main(["resume", str(run), "--iteration", "99"]) == 2
        with pytest.raises(ValueError, match="is in use: another process is training it"):
            lockstep.resume(run, iteration=99)
        process.communicate()
    assert capsys.readouterr().err == f"lockstep: {run} is in use: another process is training it\n"
    assert main(["resume", str(run)]) == 0
