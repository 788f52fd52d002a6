"""Wrappers and numbers of `info` through the command line: `env.wrappers` and `env.info_metrics`."""

import json
from pathlib import Path

import pytest
from tests.live_runs import digests, rows

MODULE = """
import os

import gymnasium as gym
import numpy as np


class Reached(gym.Wrapper):
    '''Episodes of 20 steps that succeed if the pole moves to the right.'''

    def __init__(self, env, bound=0.0):
        super().__init__(env)
        self.bound = bound

    def reset(self, **arguments):
        self.steps = 0
        return super().reset(**arguments)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        info["is_success"] = observation[0] > self.bound
        return observation, reward, terminated, truncated or self.steps == 20, info


class OtherOnRank1(gym.ObservationWrapper):
    '''Observations with one more number on rank 1.'''

    def __init__(self, env):
        super().__init__(env)
        self.more = int(os.environ.get("LOCKSTEP_RANK") == "1")
        self.observation_space = gym.spaces.Box(-9, 9, (4 + self.more,))

    def observation(self, observation):
        return np.append(observation, np.zeros(self.more, np.float32))
"""
TASK = (
    *("--env", "CartPole-v1", "--env.module", "my_wrappers", "--env.wrappers", "FrameStackObservation(stack_size=2)"),
    *(
        "--rollout.steps",
        32,
        "--ppo.epochs",
        2,
        "--ppo.minibatches",
        2,
        "--plan.shards",
        2,
        "--total-steps",
        6 * 8 * 32,
    ),
    *("--run.progress", "off", "--run.checkpoint-every", 2, "--run.keep", 9, "--policy.hidden", 16),
)
WRAPPED = (*TASK[:5], "Reached(bound=0.01), FrameStackObservation(stack_size=2)", *TASK[6:])
SUCCESS = ("--env.info-metrics", "is_success")


@pytest.fixture(autouse=True)
def module(tmp_path: Path) -> None:
    (tmp_path / "my_wrappers.py").write_text(MODULE)


def info_of(run: Path) -> list[object]:
    return [row["info/is_success"] for row in rows(run)]


@pytest.mark.slow
def test_success_rate_is_recorded_equally_on_every_plan_and_after_resume(run_cli, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    plain = run_cli("train", *WRAPPED, "--ranks", 1, "--name", "plain")
    assert plain.rc == 0, plain
    assert "info/is_success" not in rows(runs / "plain")[0]
    plans = {"one": ("--ranks", 1), "two": ("--ranks", 2), "players": ("--plan", "1:1")}
    for name, plan in plans.items():
        assert run_cli("train", *WRAPPED, *SUCCESS, *plan, "--name", name).rc == 0
        assert digests(runs / name) == digests(runs / "plain"), "recording info has changed the run"
    recorded = info_of(runs / "one")
    assert recorded == info_of(runs / "two") == info_of(runs / "players")
    assert any(0 < rate < 1 for rate in recorded if rate is not None)

    for iteration in ("00000004", "00000006"):
        for file in sorted((runs / "one" / "checkpoints" / iteration).iterdir()):
            file.unlink()
        (runs / "one" / "checkpoints" / iteration).rmdir()
    resumed = run_cli("resume", "one", "--env.module", "my_wrappers")
    assert resumed.rc == 0, resumed
    assert info_of(runs / "one") == recorded
    assert digests(runs / "one") == digests(runs / "plain")


@pytest.mark.slow
def test_other_commands_apply_the_wrappers(run_cli, tmp_path: Path) -> None:
    assert run_cli("train", *WRAPPED, "--ranks", 1, "--name", "run").rc == 0
    evaluated = run_cli("eval", "run", "--episodes", 3, "--env.module", "my_wrappers")
    assert evaluated.rc == 0, evaluated
    exported = run_cli("export", "run", "--format", "torch", "--env.module", "my_wrappers")
    assert exported.rc == 0, exported
    checked = run_cli("check", *WRAPPED[:6], "--no-speed")
    assert checked.rc == 0, checked
    assert "observation 8 numbers" in checked.stdout
    saved = json.loads((tmp_path / "runs" / "run" / "config.json").read_text())["env"]
    assert saved["wrappers"] == ["Reached(bound=0.01)", "FrameStackObservation(stack_size=2)"]
    assert saved["engine"] == "gymnasium"


def test_wrapper_that_is_not_known_is_an_error_before_the_start(run_cli, tmp_path: Path) -> None:
    refused = run_cli("train", "--env", "CartPole-v1", "--env.wrappers", "FrameStackObservations(stack_size=2)")
    assert refused.rc == 2
    assert refused.stderr.count("\n") == 1
    assert "did you mean FrameStackObservation?" in refused.stderr
    assert not (tmp_path / "runs").exists()


def test_name_that_info_does_not_have_ends_training_in_one_line(run_cli) -> None:
    failed = run_cli("train", *WRAPPED, "--env.info-metrics", "success", "--ranks", 1)
    assert failed.rc == 1
    assert (
        "returned no 'success' in info at the end of an episode, which env.info_metrics names; info has is_success"
        in failed.stderr
    )
    assert "Traceback" not in failed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("plan", [("--ranks", 2), ("--plan", "1:1")])
def test_wrapper_with_other_spaces_on_another_rank_is_an_error_before_training(run_cli, tmp_path: Path, plan) -> None:
    failed = run_cli("train", *TASK[:4], "--env.wrappers", "OtherOnRank1", *TASK[6:], *plan, "--name", "odd")
    assert failed.rc == 2, failed
    assert failed.stderr == (
        "lockstep: env.id is 'CartPole-v1': rank 1 has other spaces than rank 0 (5 instead of 4 numbers per observation); "
        "the environment, its wrappers and the versions of its packages must be the same on all ranks\n"
    )
    assert not rows(tmp_path / "runs" / "odd")
