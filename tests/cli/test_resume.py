"""Resuming a run that another process was training until just before."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

import lockstep
from lockstep.algorithm.plan import Plan
from lockstep.cli.main import main
from lockstep.cli.train_rank import resume_under_launcher
from lockstep.experiment.execute import open_run
from lockstep.experiment.prepare_resume import prepare_resume
from lockstep.processes.exit_codes import IN_USE
from lockstep.run import manifest
from lockstep.run.folder import RunFolder
from lockstep.run.manifest import encode_state, hash_file
from lockstep.runtime.rank_info import RankInfo
from lockstep.telemetry.listing import list_run

COMPLETE = "runs/first is complete: 2 iterations; set a larger --total-steps to continue\n"


@pytest.fixture(name="run", scope="module")
def fixture_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run with checkpoints of both of its iterations."""
    path = tmp_path_factory.mktemp("trained")
    settings = {"rollout": {"steps": 32}, "run.progress": "off", "run.checkpoint_every": 1, "runtime.compile": "off"}
    lockstep.train(env="CartPole-v1", total_steps=512, **{"run.folder": str(path), "run.name": "first", **settings})
    return path / "first"


def test_a_run_that_begins_again_says_why(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, tmp_path / "again")
    words = ("resume", str(tmp_path / "again"), "--run.progress", "lines")
    assert main([*words, "--iteration", "0"]) == 0
    assert capsys.readouterr().out.startswith("restarting again from the beginning: CartPole-v1, 1 rank, cpu, in ")
    shutil.rmtree(tmp_path / "again/checkpoints")
    assert main(list(words)) == 0
    assert capsys.readouterr().out.startswith(
        "restarting again, which has no checkpoint: CartPole-v1, 1 rank, cpu, in "
    )


def test_a_run_that_is_older_than_a_field_is_resumed(run: Path, tmp_path: Path) -> None:
    """Kernels and records of starts came later than the first run folders."""
    folder = RunFolder(tmp_path / "old")
    shutil.copytree(run, folder.path)
    tree = folder.tree()
    del tree["runtime"]["compile"]  # type: ignore[attr-defined]
    (folder.path / "config.json").write_text(json.dumps(tree))
    (folder.path / "starts.jsonl").unlink()
    assert list_run(folder.path).state == "done"
    assert main(["resume", str(folder.path), "--total-steps", "768"]) == 0
    assert folder.checkpoints()[-1] == 3
    _, config = open_run(folder.path)
    assert config.runtime.compile == "off"


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
        assert main(["resume", str(run), "--iteration", "99"]) == IN_USE
        with pytest.raises(ValueError, match="is in use: another process is training it"):
            lockstep.resume(run, iteration=99)
        process.communicate()
    assert capsys.readouterr().err == f"lockstep: {run} is in use: another process is training it\n"
    assert main(["resume", str(run)]) == 0


def test_checkpoint_is_hashed_once_per_process(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process that starts the ranks has loaded the checkpoint before; here it is the only rank as well."""
    folder = RunFolder(Path(shutil.copytree(run, tmp_path / "resumed")))
    hashed: list[str] = []
    monkeypatch.setattr(manifest, "hash_file", lambda path: hashed.append(path.name) or hash_file(path))
    _, config = open_run(folder.path)
    extended = dataclasses.replace(config, run=dataclasses.replace(config.run, total_steps=768))
    assert prepare_resume(folder, config, extended, None, 1) == 2
    assert sorted(hashed) == sorted(path.name for path in folder.checkpoint(2).glob("*.safetensors"))
    assert capsys.readouterr().err == ""


def test_resume_names_packages_of_other_versions(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(Path(shutil.copytree(run, tmp_path / "resumed")))
    record = json.loads((folder.path / "environment.json").read_text())
    record["packages"] |= {"torch": "1.0", "numpy": 7, "unknown": "1"}
    (folder.path / "environment.json").write_text(json.dumps(record))
    _, config = open_run(folder.path)
    assert prepare_resume(folder, config, config, 1, 1) == 1
    line = f"torch {version('torch')} (1.0 in the run)"
    expected = f"lockstep: the packages are not those of the run, and may give different bits: {line}\n"
    assert capsys.readouterr().err == expected
    for text in ("{", "[]", '{"packages": 7}'):
        (folder.path / "environment.json").write_text(text)
        assert prepare_resume(folder, config, config, 1, 1) == 1
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", [".", "checkpoints", "metrics.jsonl"])
def test_run_of_another_user_is_refused_in_one_line(run: Path, name: str) -> None:
    with tempfile.TemporaryDirectory() as place:  # its parent is open to all users, unlike that of tmp_path
        folder = RunFolder(Path(shutil.copytree(run, Path(place) / "foreign")))
        Path(place).chmod(0o755)
        for path in (folder.path, *folder.path.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        (folder.path / name).chmod(0o555)
        _, config = open_run(folder.path)
        user = os.geteuid()
        if user == 0:  # root may write everything
            os.seteuid(65534)
        try:
            with pytest.raises(ValueError, match="can't be written by this user: it belongs to ") as caught:
                prepare_resume(folder, config, config, None, 1)
        finally:
            os.seteuid(user)
        assert str(caught.value).startswith(str(folder.path / name))
        assert str(caught.value).endswith("; copy the run, and resume the copy")
        assert "\n" not in str(caught.value)


@pytest.fixture(name="damaged")
def fixture_damaged(run: Path, tmp_path: Path) -> RunFolder:
    """Copy of the run whose newest checkpoint is damaged."""
    folder = RunFolder(Path(shutil.copytree(run, tmp_path / "damaged")))
    agent = folder.checkpoint(2) / "agent.safetensors"
    content = bytearray(agent.read_bytes())
    content[-1] ^= 1
    agent.write_bytes(content)
    return folder


def test_damaged_newest_checkpoint_is_replaced_by_the_one_before(
    damaged: RunFolder, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(damaged.path), "--restarts", "0"]) == 0
    warning, *rest = capsys.readouterr().err.splitlines()
    problem = f"checkpoint {damaged.checkpoint(2)}: agent.safetensors is missing, truncated or changed"
    assert (warning, rest) == (f"lockstep: {problem}; resuming from an earlier one", [])
    assert [row["digest"] for row in damaged.metrics()] == [row["digest"] for row in RunFolder(run).metrics()]
    assert main(["resume", str(damaged.path)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "words",
    [
        ["resume", "--iteration", "2"],
        ["eval"],
        ["play", "--video"],
        ["export"],
        ["push", "--username", "u", "--dry-run"],
    ],
)
def test_damaged_checkpoint_is_refused_where_another_one_would_be_another_policy(
    words: list[str], damaged: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(damaged.path.rglob("*"))
    assert main([words[0], str(damaged.path), *words[1:]]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    problem = f"checkpoint {damaged.checkpoint(2)}: agent.safetensors is missing, truncated or changed"
    assert line == f"lockstep: {problem}; use the newest intact checkpoint with --iteration 1"
    assert sorted(damaged.path.rglob("*")) == before


def with_tensors(checkpoint: Path, name: str, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Change the tensors of a file of a checkpoint, with the hashes."""
    tensors = safetensors.torch.load_file(checkpoint / f"{name}.safetensors")
    change(tensors)
    (checkpoint / f"{name}.safetensors").write_bytes(safetensors.torch.save(tensors))
    state = json.loads((checkpoint / "state.json").read_text())
    del state["sha256"]
    hashes = {path.name: hash_file(path) for path in checkpoint.glob("*.safetensors")}
    (checkpoint / "state.json").write_bytes(encode_state(state, hashes))


def test_weights_that_are_not_finite_are_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(Path(shutil.copytree(run, tmp_path / "diverged")))
    with_tensors(folder.checkpoint(2), "agent", lambda tensors: tensors["policy.policy_head.bias"].fill_(torch.nan))
    for command in ("eval", "export"):
        assert main([command, str(folder.path)]) == 2
        error = capsys.readouterr().err
        assert error.endswith("can't be used: tensor 'policy.policy_head.bias' has values that are not finite\n")
        assert not (folder.path / "evaluation.json").exists()
    assert main(["resume", str(folder.path)]) == 0
    assert "are not finite; resuming from an earlier one\n" not in capsys.readouterr().err  # the run is complete
    with_tensors(folder.checkpoint(2), "agent", lambda tensors: tensors["policy.policy_head.bias"].fill_(torch.inf))
    assert main(["resume", str(folder.path), "--total-steps", "768", "--restarts", "0"]) == 0
    error = capsys.readouterr().err
    assert "not finite; resuming from an earlier one" in error
    assert len(error.splitlines()) == 1
    assert lockstep.Run(folder.path).digest
