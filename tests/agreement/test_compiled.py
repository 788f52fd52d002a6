"""Compiled updates: the same bits for every plan and after resuming, and errors without a compiler."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.live_runs import digests

from lockstep.config import Config
from lockstep.experiment.resolve import resolve
from lockstep.run.settings import RunConfig
from lockstep.runtime.settings import RuntimeConfig

pytestmark = pytest.mark.slow

WORDS = (
    "train",
    "--env",
    "CartPole-v1",
    "--rollout.steps",
    128,
    "--ppo.minibatches",
    2,
    "--ppo.epochs",
    2,
    "--total-steps",
    8 * 128 * 6,
)
COMPILED = (*WORDS, "--runtime.compile", "on", "--plan.shards", 2, "--run.checkpoint-every", 3, "--run.progress", "off")


@pytest.fixture(scope="module", name="alone")
def fixture_alone(run_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a compiled run on one rank."""
    folder = tmp_path_factory.mktemp("compiled")
    run_in(folder, *COMPILED, "--name", "alone", "--ranks", 1)
    return folder / "runs" / "alone"


def test_every_plan_gives_the_same_bits(run_cli, same, tmp_path: Path, alone: Path) -> None:
    for name, flags in {
        "coupled": ("--ranks", 2),
        "players": ("--plan", "1:2"),
        "gloo": ("--ranks", 2, "--runtime.backend", "gloo"),
    }.items():
        rc, _, err = run_cli(*COMPILED, "--name", name, *flags)
        assert rc == 0, err
        same(alone, name, 6)
    rc, _, err = run_cli("resume", "coupled", "--iteration", 3, "--ranks", 1)
    assert rc == 0, err
    same(alone, "coupled", 6)
    rc, _, err = run_cli(
        *WORDS, "--plan.shards", 2, "--runtime.compile", "off", "--name", "plain", "--run.progress", "off"
    )
    assert rc == 0, err
    assert digests(tmp_path / "runs" / "plain")[-1] != digests(alone)[-1], "nothing was compiled"


@pytest.mark.exhaustive  # the trainer has to wait for the compiler for longer than the timeout
def test_player_waits_while_the_trainer_builds_the_interpreter(run_cli, tmp_path: Path) -> None:
    slow = tmp_path / "slow-compiler"
    slow.write_text(f'#!/bin/sh\nmkdir {tmp_path}/once 2>&- && sleep 14\nexec g++ "$@"\n')
    slow.chmod(0o755)
    flags = ("--name", "cold", "--plan", "1:1", "--runtime.timeout", 12)
    rc, _, err = run_cli(*COMPILED, *flags, env={"CXX": str(slow), "LOCKSTEP_CACHE": str(tmp_path / "kernels")})
    assert rc == 0, err
    assert len([*(tmp_path / "kernels").glob("*.so")]) > 0


def test_auto_depends_only_on_the_config() -> None:
    config = Config(run=RunConfig(total_steps=2048))
    assert resolve(config, 1).runtime.compile == "on"
    for runtime in (RuntimeConfig(device="cuda"), RuntimeConfig(precision="bf16"), RuntimeConfig(compile="off")):
        assert resolve(replace(config, runtime=runtime), 1).runtime.compile == "off"


def test_new_run_without_a_compiler_warns_and_is_not_compiled(run_cli, tmp_path: Path) -> None:
    rc, _, err = run_cli(*COMPILED, "--name", "plain", env={"CXX": "no-such-compiler"})
    assert rc == 0
    assert err.splitlines() == [
        "there is no C++ compiler here (g++, or what CXX names), so the update has no kernels: the run will be slower"
    ]
    assert json.loads((tmp_path / "runs" / "plain" / "config.json").read_text())["runtime"]["compile"] == "off"


def test_unsupported_compilation_is_refused_in_one_line(run_cli, alone: Path) -> None:
    rc, out, err = run_cli(*WORDS, "--runtime.compile", "on", "--runtime.precision", "bf16")
    assert (rc, out, len(err.splitlines())) == (2, "", 1)
    assert (
        "runtime.compile is 'on': it needs the CPU, fp32 or fp64, ordered gradients, and a policy whose encoder, core, head and "
        "distribution are built in, but runtime.precision is 'bf16'" in err
    )
    rc, out, err = run_cli("resume", alone, "--iteration", 3, env={"CXX": "no-such-compiler"})
    assert (rc, out, len(err.splitlines())) == (2, "", 1)
    assert "there is no C++ compiler here" in err


def test_compiled_steps_that_are_left_out_give_the_same_bits_for_every_plan(run_cli, same, tmp_path: Path) -> None:
    """The environment has the spaces of CartPole, so the kernels are those of the other tests."""
    (tmp_path / "spoiled.py").write_text("from tests.envs.sample_environments import register\n\nregister()\n")
    words = [word if word != "CartPole-v1" else "lockstep-tests/Spoiled-v0" for word in COMPILED]
    rare = ("--env.module", "spoiled", "--env.options", "{share: 0.02}", "--ppo.on-non-finite", "skip")
    for name, flags in {"alone": ("--ranks", 1), "coupled": ("--ranks", 2)}.items():
        rc, _, err = run_cli(*words, *rare, "--name", name, *flags)
        assert rc == 0, err
        assert "a gradient step was left out: " in err
    same("alone", "coupled", 6)
    metrics = [json.loads(row) for row in (tmp_path / "runs/alone/metrics.jsonl").read_text().splitlines()]
    assert any(row["skipped_steps"] for row in metrics)
    assert any(row["update_steps"] for row in metrics[3:]), "training continues"


def test_evaluation_without_a_compiler_says_so(run_cli, alone: Path, tmp_path: Path) -> None:
    found, expected = {"CXX": "no-such-compiler", "LOCKSTEP_CACHE": str(tmp_path / "empty")}, []
    for environment, lines in ((found, 1), ({}, 0)):
        rc, _, err = run_cli("eval", alone, "--episodes", 1, env=environment)
        assert (rc, len(err.splitlines())) == (0, lines), err
        expected.append(json.loads((alone / "evaluation.json").read_text())["returns"])
        if lines:
            assert "so the policy is computed without kernels: results differ by rounding" in err
    assert expected[0] == pytest.approx(expected[1])
