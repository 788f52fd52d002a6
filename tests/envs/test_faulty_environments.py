"""Environments that violate Gymnasium's API or end the process: the error names the environment and the violation."""

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from lockstep.cli.main import main
from lockstep.envs.catalog import describe_env, make_engine
from lockstep.envs.engine import Engine, EnvironmentFailed
from lockstep.envs.env_factory import EnvFactory
from lockstep.envs.in_process import InProcessEngine
from lockstep.envs.settings import EnvConfig


class Faulty(gym.Env[Any, Any]):
    """Environment that violates the API in the way that `fault` names."""

    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, fault: str, render_mode: str | None = None) -> None:
        self.fault = fault
        self.steps = 0
        if fault == "exit in constructor":
            raise SystemExit(0)
        if fault != "no space":
            self.observation_space = gym.spaces.Box(-9, 9, (3,))
        if fault in ("discrete reset", "exit in description"):
            self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.fault in ("raise in reset", "discrete reset"):
            user_function()
        if self.fault in ("exit in reset", "exit in description"):
            raise SystemExit(75)
        observation = np.zeros(4 if self.fault == "shape in reset" else 3, np.float32)
        return observation if self.fault == "old reset" else (observation, {})

    def step(self, action: Any) -> Any:
        if self.fault == "raise in step":
            user_function()
        if self.fault == "exit in step":
            raise SystemExit(0)
        self.steps += 1
        late_fault = "late shape (1,)" if self.steps == 3 else ""
        observation = np.zeros({"shape": 4, "shape (1,)": 1, late_fault: 1}.get(self.fault, 3), np.float32)
        if self.fault == "old step":
            return observation, 0.0, False, {}
        return observation, {"no reward": None, "text": "1"}.get(self.fault, 0.0), False, False, {}

    def close(self) -> None:
        if self.fault == "exit in close":
            raise SystemExit(0)


def user_function() -> None:
    raise RuntimeError("user's fault")


ENV_ID = "lockstep-tests/Faulty-v0"
gym.register(ENV_ID, Faulty)  # type: ignore[arg-type]
gym.register("lockstep-tests/Limited-v0", Faulty, max_episode_steps=5, kwargs={"fault": "old step"})  # type: ignore[arg-type]


def config_of(fault: str, engine: str) -> EnvConfig:
    return EnvConfig(id=ENV_ID, engine=engine, count=4, options={"fault": fault})  # type: ignore[arg-type]


def reset_and_step(engine: Engine) -> None:
    engine.reset()
    for _ in range(3):
        engine.step(np.zeros((2, 1), np.float32))


def failure(config: EnvConfig) -> EnvironmentFailed:
    """Return the error of a reset and three steps of environments 2 and 3."""
    engine = make_engine(config, seed=1, shard=1, shards=2)
    try:
        with pytest.raises(EnvironmentFailed) as caught:
            reset_and_step(engine)
    finally:
        engine.close()
    return caught.value


@pytest.mark.parametrize("engine", ["gymnasium", "gymnasium-async"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("exit in reset", r"called sys.exit\(75\)"),
        ("exit in step", r"called sys.exit\(0\)"),
        ("shape in reset", r"got ndarray of shape \(4,\) and type float32, expected Box\(.*\(3,\), float32\)"),
        ("shape", r"got ndarray of shape \(4,\) and type float32, expected Box\(.*\(3,\), float32\)"),
        ("shape (1,)", r"got ndarray of shape \(1,\) and type float32, expected Box\(.*\(3,\), float32\)"),
        ("late shape (1,)", r"got ndarray of shape \(1,\) and type float32, expected Box\(.*\(3,\), float32\)"),
        ("old step", r"returned 4 values from step: Gymnasium's API returns \(observation, reward,.*old Gym API"),
        ("old reset", r"returned ndarray from reset: Gymnasium's API returns \(observation, info\).*old Gym API"),
        ("no reward", r"returned a reward of type NoneType"),
        ("text", r"returned a reward of type str \('1'\)"),
    ],
)
def test_a_violation_is_reported_in_one_line(engine: str, fault: str, words: str) -> None:
    error = str(failure(config_of(fault, engine)))
    assert re.match(rf"environment [23] \({ENV_ID}\) (returned an observation.*)?{words}", error), error
    assert "\n" not in error


def test_the_old_api_is_recognized_within_a_gymnasium_wrapper() -> None:
    error = failure(EnvConfig(id="lockstep-tests/Limited-v0", engine="gymnasium", count=4))
    assert "returned 4 values from step" in str(error)


@pytest.mark.parametrize("fault", ["raise in reset", "raise in step"])
def test_an_error_has_the_trace_of_its_worker(fault: str) -> None:
    error = failure(config_of(fault, "gymnasium-async"))
    assert "failed: RuntimeError: user's fault" in str(error)
    assert any("in user_function" in note for note in error.__notes__)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("exit in constructor", r"the environment called sys.exit\(0\) while it was created"),
        ("exit in description", r"its reset called sys.exit\(75\)"),
    ],
)
def test_an_exit_before_training_raises_environment_failed(fault: str, words: str) -> None:
    with pytest.raises(EnvironmentFailed, match=words) as raised:
        describe_env(config_of(fault, "gymnasium"))
    assert "SystemExit" in raised.value.__notes__[0]


def test_an_environment_without_spaces_is_refused() -> None:
    with pytest.raises(ValueError, match="its attribute observation_space is missing"):
        describe_env(config_of("no space", "gymnasium"))


def test_an_exit_in_close_raises_environment_failed() -> None:
    engine = object.__new__(InProcessEngine)
    engine._first, engine._factory = 2, EnvFactory(ENV_ID)
    engine._envs = [Faulty("exit in close")]  # type: ignore[list-item]
    with pytest.raises(EnvironmentFailed, match=r"environment 2 .* called sys.exit\(0\)"):
        engine.close()


def train(tmp_path: Path, fault: str, engine: str = "gymnasium") -> int:
    arguments = [
        "train",
        "--env.id",
        ENV_ID,
        "--env.options",
        f"{{fault: {fault}}}",
        "--env.engine",
        engine,
        "--env.count",
        "2",
    ]
    arguments += [
        "--ranks",
        "1",
        *("--restarts", "0"),  # only this process knows the environment
        "--rollout.steps",
        "8",
        "--total-steps",
        "16",
        "--ppo.minibatches",
        "1",
        "--run.progress",
        "off",
    ]
    return main([*arguments, "--out", str(tmp_path), "--runtime.compile", "off"])


@pytest.mark.parametrize(
    ("fault", "engine", "code", "words", "trace"),
    [
        (
            "exit in constructor",
            "gymnasium",
            1,
            "the environment called sys.exit(0) while it was created",
            "raise SystemExit(0)",
        ),
        ("exit in description", "gymnasium", 1, "its reset called sys.exit(75)", "raise SystemExit(75)"),
        ("exit in step", "gymnasium", 1, f"environment 0 ({ENV_ID}) called sys.exit(0)", "raise SystemExit(0)"),
        ("raise in step", "gymnasium-async", 1, "failed: RuntimeError: user's fault", "in user_function"),
        ("discrete reset", "gymnasium", 2, "its reset failed: RuntimeError: user's fault", "in user_function"),
    ],
)
def test_training_prints_the_trace_and_then_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], fault: str, engine: str, code: int, words: str, trace: str
) -> None:
    assert train(tmp_path, fault, engine) == code
    output = capfd.readouterr().err
    assert trace in output
    assert words in output.splitlines()[-1]
