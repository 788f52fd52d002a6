"""`lockstep verify`: training a run again."""

import json
import os
from pathlib import Path

import pytest
from tests.cli.test_modules import FLAGS, MODULE
from tests.live_runs import digests, rows

from lockstep.cli.main import main

MODULE_FLAGS = ("--env.module", "my_envs")


@pytest.fixture
def run(run_cli, tmp_path: Path) -> Path:
    """The folder of a run of 3 iterations."""
    (tmp_path / "my_envs.py").write_text(MODULE)
    finished = run_cli("train", *FLAGS, *MODULE_FLAGS, "--ranks", 1)
    assert finished.rc == 0, finished
    return tmp_path / "runs" / "run"


@pytest.mark.slow
def test_run_is_verified_on_other_ranks_and_a_difference_is_found(run_cli, run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    finished = run_cli("verify", "run", *MODULE_FLAGS, "--ranks", 2)
    assert finished.rc == 0, finished
    first, same, identical = finished.stdout.splitlines()
    assert first == "training 3 iterations of runs/run again, on 2 ranks"
    assert same.startswith("same processor and versions: ")
    assert identical == "identical: 3 iterations gave the recorded digests"
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    finished = run_cli("verify", "run", *MODULE_FLAGS, "--iterations", 4)
    assert (finished.rc, finished.stderr) == (2, "lockstep: --iterations is 4: runs/run has 3 iterations\n")

    lines = [row | {"digest": "0" * 64} if row["iteration"] == 2 else row for row in rows(run)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    finished = run_cli("verify", "run", *MODULE_FLAGS, "--iterations", 1)
    assert (finished.rc, finished.stdout.splitlines()[-1]) == (0, "identical: 1 iteration gave the recorded digests")
    finished = run_cli("verify", "run", *MODULE_FLAGS)
    assert finished.rc == 1, finished
    assert finished.stdout.splitlines()[-1].startswith(f"iteration 2 differs: {'0' * 64} is recorded, ")


@pytest.mark.slow
def test_extended_run_is_verified_up_to_its_extension(run_cli, run: Path) -> None:
    assert run_cli("resume", "run", *MODULE_FLAGS, "--total-steps", 320).rc == 0
    assert len(digests(run)) == 5
    finished = run_cli("verify", "run", *MODULE_FLAGS, "--ranks", 1)
    assert finished.rc == 0, finished
    assert finished.stdout.splitlines()[-1] == "identical: 3 iterations gave the recorded digests"
    finished = run_cli("verify", "run", *MODULE_FLAGS, "--iterations", 4)
    assert (finished.rc, finished.stderr) == (
        2,
        "lockstep: --iterations is 4: runs/run was extended with a larger --total-steps after iteration 3, so no later one can be trained again "
        "from the start\n",
    )


def verify(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["verify", *words])
    return code, capsys.readouterr().err


@pytest.mark.slow
def test_run_that_can_not_be_trained_again_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert verify(capsys, "run") == (
        2,
        "lockstep: env.module is 'my_envs' in this run: a run folder can't import modules; pass --env.module my_envs again if you trust it\n",
    )
    code, line = verify(capsys, "run", *MODULE_FLAGS, "--iterations", "0")
    assert (code, line) == (2, "lockstep: --iterations is '0': it must be a whole number, at least 1\n")
    config = json.loads((run / "config.json").read_text())
    os.truncate(run / "metrics.jsonl", 0)
    assert verify(capsys, "run")[1] == "lockstep: runs/run has no iteration yet, so there is no digest to verify\n"

    (run / "metrics.jsonl").write_text('{"iteration": 1, "digest": "a"}\n')
    config["env"] |= {"id": "my_envs.make()", "module": None}
    (run / "config.json").write_text(json.dumps(config))
    assert verify(capsys, "run")[1].startswith("lockstep: env.id is 'my_envs.make()': a function of a program made ")

    config["env"]["id"] = "CartPole-v1"
    (run / "config.json").write_text(json.dumps(config))
    start = json.loads((run / "starts.jsonl").read_text().splitlines()[0])
    start["packages"]["lockstep-rl"] = "0.0.9"
    (run / "starts.jsonl").write_text(f"{json.dumps(start)}\n")
    code, line = verify(capsys, "run")
    assert (code, line.partition(", and this is ")[0]) == (2, "lockstep: runs/run was trained by lockstep 0.0.9")
