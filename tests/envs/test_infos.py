"""Numbers of `info` at the end of episodes: `env.info_metrics`, with every engine."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.envs.test_engines import actions_of, trajectory

from lockstep.envs.catalog import make_engine
from lockstep.envs.engine import EnvironmentFailed
from lockstep.envs.settings import EnvConfig

ENV_ID = "lockstep-tests/InfoMetrics-v0"
LENGTH = 4


class Info(gym.Env[Any, Any]):
    """Environment whose episodes have 4 steps. It reports the number of its episode and half of its steps."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, wrong: str = "", render_mode: str | None = None) -> None:
        self.episode, self.wrong = -1, wrong

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.draw = float(self.np_random.random())
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        values: dict[str, Any] = {"text": "done", "infinite": np.inf, "pair": [1, 2]}
        info = {"draw": self.draw, "is_success": np.bool_(True), "maybe": np.nan, "half": self.steps / 2} | values
        return np.zeros(2, np.float32), 1.0, False, self.steps == LENGTH, info if self.steps == LENGTH else {}


@pytest.fixture(autouse=True)
def registered() -> None:
    if ENV_ID not in gym.registry:
        gym.register(ENV_ID, Info)


def collected(engine_name: Any, names: tuple[str, ...], steps: int = 2 * (LENGTH + 1)) -> np.ndarray:
    """Return the numbers `[steps, 2, K]`."""
    engine = make_engine(EnvConfig(ENV_ID, engine_name, 2, info_metrics=names), 0, 0, 1)
    try:
        engine.reset()
        found = []
        for action in actions_of(engine.spaces, steps, 2):
            engine.step(action)
            found.append(np.array(engine.infos))
        return np.array(found)
    finally:
        engine.close()


@pytest.mark.parametrize("engine", ["gymnasium", "gymnasium-async"])
def test_numbers_come_with_the_last_step_of_an_episode(engine: str) -> None:
    found = collected(engine, ("half", "is_success", "maybe"))
    last = [LENGTH - 1, 2 * LENGTH]
    assert found[last].tolist() == pytest.approx(np.array([[[LENGTH / 2, 1, np.nan]] * 2] * 2), nan_ok=True)
    assert np.isnan(np.delete(found, last, axis=0)).all()


def test_engines_return_the_same_numbers() -> None:
    one, other = (collected(engine, ("draw",)) for engine in ("gymnasium", "gymnasium-async"))
    assert one.tobytes() == other.tobytes()
    assert len(np.unique(one[~np.isnan(one)])) == 4


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "HalfCheetah-v5"])
def test_envpool(env_id: str) -> None:
    pytest.importorskip("envpool")
    config = EnvConfig(env_id, "envpool", 3, options={"max_episode_steps": 5}, info_metrics=("elapsed_step",))
    engine = make_engine(config, 0, 0, 1)
    engine.reset()
    found = []
    for action in actions_of(engine.spaces, 7, 3):
        engine.step(action)
        found.append(np.array(engine.infos)[:, 0])
    engine.close()
    assert np.isnan(np.delete(found, 4, axis=0)).all()
    assert found[4].tolist() == [5, 5, 5]


def test_vector_version_of_gymnasium_has_no_info() -> None:
    engine = make_engine(EnvConfig("CartPole-v1", "gymnasium-vector", 4, info_metrics=("x",)), 0, 0, 1)
    engine.reset()
    with pytest.raises(
        EnvironmentFailed, match=r"returned no 'x' in info at the end of an episode, .*; info has nothing"
    ):
        trajectory(engine, np.zeros((30, 4), np.int64))
    engine.close()


@pytest.mark.parametrize("engine", ["gymnasium", "gymnasium-async"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "success",
            "returned no 'success' in info at the end of an episode, which env.info_metrics names; info has draw, half, ",
        ),
        ("text", "returned text = 'done' in info, .*: it must be a finite number or NaN"),
        ("infinite", "returned infinite = inf in info"),
        ("pair", r"returned pair = \[1, 2\] in info"),
    ],
)
def test_missing_or_wrong_number_names_environment_and_key(engine: str, name: str, message: str) -> None:
    with pytest.raises(EnvironmentFailed, match=f"^environment [01] \\({ENV_ID}\\) {message}") as failed:
        collected(engine, (name,))
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("names", "message"), [(("a b",), "a name must be"), (("",), "a name must be"), (("a", "a"), "has 'a' twice")]
)
def test_config_refuses_names(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EnvConfig(info_metrics=names)
