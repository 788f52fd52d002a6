"""Begin of `train --resume`: which run continues, from where, and which is refused."""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

import lockstep
from lockstep.algorithm.plan import Plan
from lockstep.config import Config
from lockstep.config.decode import decode
from lockstep.experiment.execute import open_run
from lockstep.experiment.prepare_run import ResolvedRun, prepare_run
from lockstep.experiment.resolve import resolve
from lockstep.run.folder import RunFolder, RunInUse

SETTINGS = {
    "env": {"id": "CartPole-v1"},
    "rollout": {"steps": 32},
    "runtime": {"compile": "off", "device": "cpu"},
    "run": {"total_steps": 512, "progress": "off", "checkpoint_every": 1},
}


@pytest.fixture(name="trained", scope="module")
def fixture_trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run with checkpoints of both of its iterations."""
    folder = tmp_path_factory.mktemp("trained")
    return lockstep.train(config=decode(SETTINGS, Config()), out=str(folder), name="run").path


@pytest.fixture(name="folder")
def fixture_folder(trained: Path, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(trained, tmp_path / "run")))


def request(folder: Path, changes: Mapping[str, Mapping[str, object]], ranks: int = 1) -> ResolvedRun:
    """Return the request to start or resume the run in `folder`, with changed settings."""
    named = {**SETTINGS, "run": {**SETTINGS["run"], "folder": str(folder.parent), "name": folder.name}}
    asked = decode(changes, decode(named, Config()))
    known = dataclasses.replace(
        asked, runtime=dataclasses.replace(asked.runtime, device=asked.runtime.device.replace("auto", "cpu"))
    )
    plan = Plan.make(asked.plan, ranks)
    return ResolvedRun(asked, resolve(known, ranks, plan), plan, None, resume=True)


def test_run_is_created_if_there_is_none(tmp_path: Path) -> None:
    folder, config, resume_from = prepare_run(request(tmp_path / "new", {}))
    assert (resume_from, open_run(tmp_path / "new")[1]) == (0, config)
    with pytest.raises(RunInUse):
        prepare_run(request(tmp_path / "new", {}))
    folder.unlock()
    assert prepare_run(request(tmp_path / "new", {})).resume_from == 0


def test_run_goes_on_from_its_newest_intact_checkpoint(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    begun = prepare_run(request(folder.path, {}))
    assert begun.resume_from is None, "it is complete"
    begun.folder.unlock()
    shutil.rmtree(folder.checkpoint(2))
    begun = prepare_run(request(folder.path, {}))
    assert begun.resume_from == 1
    begun.folder.unlock()
    (folder.checkpoint(1) / "agent.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no earlier checkpoint is intact: --iteration 0"):
        prepare_run(request(folder.path, {}))
    folder.lock()  # released after the error


def test_fields_that_may_change_have_the_new_values(folder: RunFolder) -> None:
    shutil.rmtree(folder.checkpoint(2))
    changes = {"runtime": {"timeout": 17}, "run": {"log_every": 3}}
    assert prepare_run(request(folder.path, changes)).config == open_run(folder.path)[1]
    assert open_run(folder.path)[1].runtime.timeout == 17


@pytest.mark.parametrize(
    ("changes", "ranks", "part"),
    [
        ({"ppo": {"epochs": 3}, "policy": {"hidden": [8]}}, 1, "policy.hidden is [8]: it was [64, 64]"),
        ({"run": {"total_steps": 1024}}, 1, "run.total_steps is 1024: it was 512"),
        ({}, 2, "plan.shards is 2: it was 1"),
        ({"runtime": {"compile": "on"}}, 1, "runtime.compile is 'on': it was 'off'"),
    ],
)
def test_another_experiment_is_refused(
    folder: RunFolder, changes: Mapping[str, Mapping[str, object]], ranks: int, part: str
) -> None:
    before = (folder.path / "config.json").read_bytes()
    with pytest.raises(ValueError, match=r"was created; set it back, or choose another --name$") as caught:
        prepare_run(request(folder.path, changes, ranks))
    assert str(caught.value).startswith(part)
    assert (folder.path / "config.json").read_bytes() == before
    folder.lock()  # released after the error


def test_device_changes_only_if_the_user_sets_it(folder: RunFolder) -> None:
    shutil.rmtree(folder.checkpoint(2))
    config = folder.path / "config.json"
    config.write_text(config.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    with pytest.raises(ValueError, match=r"^runtime\.device is 'cpu': it was 'cuda' when "):
        prepare_run(request(folder.path, {"runtime": {"device": "auto"}}))
    assert prepare_run(request(folder.path, {})).config.runtime.device == "cpu"


def test_a_name_is_needed() -> None:
    config = decode(SETTINGS, Config())
    with pytest.raises(ValueError, match=r"^--resume needs --name"):
        ResolvedRun(config, config, Plan.make(config.plan, 1), None, resume=True)
