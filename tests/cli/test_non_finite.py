"""Gradient steps that are not finite, through the command line: stop or skip, the dump, and its replay."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests.live_runs import digests, rows

from lockstep.cli.main import main

pytestmark = pytest.mark.slow

MODULE = "from tests.envs.sample_environments import register\n\nregister()\n"
TASK = (
    *("--env", "lockstep-tests/Spoiled-v0", "--env.module", "spoiled", "--env.count", 4, "--rollout.steps", 32),
    *("--plan.shards", 4, "--policy.hidden", "[8]", "--ppo.epochs", 2),
    *("--run.progress", "off", "--runtime.compile", "off", "--total-steps", 4 * 32 * 6, "--restarts", 0),
)
ALWAYS = ("--env.options", "{share: 1.0}")
SKIP = ("--ppo.on-non-finite", "skip", "--run.checkpoint-every", 2)
MANY, ONE = ("--ppo.minibatches", 8), ("--ppo.minibatches", 1)


@pytest.fixture(autouse=True, name="module")
def fixture_module(tmp_path: Path) -> None:
    (tmp_path / "spoiled.py").write_text(MODULE)


def test_skipped_steps_are_counted_and_a_resumed_run_has_the_same_digests(run_cli, tmp_path: Path) -> None:
    finished = run_cli("train", *TASK, *MANY, *SKIP, "--name", "run", "--ranks", 1)
    assert finished.rc == 0, finished
    run = tmp_path / "runs" / "run"
    (warning,) = finished.stderr.splitlines()
    assert warning.startswith("lockstep: a gradient step was left out: the ")
    assert "`lockstep replay runs/run/non-finite-" in warning
    assert "--env.module spoiled`" in warning
    assert sum(row["skipped_steps"] for row in rows(run)) > 0
    assert all(row["update_steps"] + row["skipped_steps"] == 16 for row in rows(run))
    assert "NaN" not in (run / "metrics.jsonl").read_text()
    assert "Infinity" not in (run / "metrics.jsonl").read_text()
    before = digests(run)
    finished = run_cli("resume", "run", "--iteration", 2, "--ranks", 2, "--env.module", "spoiled")
    assert finished.rc == 0, finished
    assert digests(run) == before


@pytest.mark.parametrize(
    "words",
    [
        ("--ranks", 1),
        pytest.param(("--plan", "1:1", "--plan.lag", 1), marks=pytest.mark.exhaustive),
        ("--plan", "2:1", "--plan.lag", 1, "--runtime.backend", "gloo"),
    ],
)
def test_a_run_that_stops_names_the_value_and_the_step_can_be_replayed(
    run_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple
) -> None:
    """Over gloo with lag 1, players run ahead while the update fails."""
    options = ("--env.options", "{share: 0.3, spoil: observation}")
    finished = run_cli("train", *TASK, *ONE, *options, *words, "--name", "run")
    assert finished.rc == 3, finished
    (line,) = finished.stderr.splitlines()
    place = re.match(
        r"lockstep: the observation of environment (\d+) is nan at step (\d+) of iteration \d+: check", line
    )
    assert place is not None, line
    assert "`lockstep replay runs/run/non-finite-" in line
    (dump,) = (tmp_path / "runs" / "run").glob("non-finite-*.safetensors")
    monkeypatch.chdir(tmp_path)
    assert main(["replay", str(dump), "--env.module", "spoiled"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("lockstep-tests/Spoiled-v0, iteration ")
    assert out[1].startswith("reproduced: column 0 of the observations is nan in row ")
    assert f", which is step {int(place[2]) + 1} of environment {place[1]}, in epoch 1" in out[1]


def test_weights_that_diverge_and_environments_that_always_fail_end_a_run_that_skips(run_cli, tmp_path: Path) -> None:
    finished = run_cli("train", *TASK, *ONE, *SKIP, *ALWAYS, "--name", "always", "--ranks", 2)
    assert finished.rc == 3, finished
    assert "no gradient step was finite in 3 iterations in a row: the " in finished.stderr.splitlines()[-1]
    assert len(finished.stderr.splitlines()) == 2, "the warning, and the end"
    finished = run_cli("train", *TASK, *ONE, *SKIP, "--ppo.learning-rate", 1e38, "--name", "fast", "--ranks", 1)
    assert finished.rc == 3, finished
    assert len(finished.stderr.splitlines()) == 2
    assert "but the step makes weights infinite: lower ppo.learning_rate" in finished.stderr.splitlines()[0]
    assert not list((tmp_path / "runs" / "fast").glob("non-finite-*")), "no number of the step is infinite"


def test_a_dump_with_finite_numbers_is_not_reproduced(
    run_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli("train", *TASK, *ONE, *ALWAYS, "--name", "run", "--ranks", 1).rc == 3
    dump = tmp_path / "runs/run/non-finite-00000001.safetensors"
    content = dump.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    tensors = {
        name: tensor.nan_to_num(0, 0, 0) if tensor.is_floating_point() else tensor
        for name, tensor in load_file(dump).items()
    }
    save_file(tensors, dump, header["__metadata__"])
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["replay", str(dump), "--env.module", "spoiled"]) == 1
    assert "not reproduced: all numbers are finite" in capsys.readouterr().out
    assert main(["replay", str(dump)]) == 2
    assert "env.module is 'spoiled' in this run" in capsys.readouterr().err
