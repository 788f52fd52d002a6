"""Numbers of `info` at the end of episodes: `env.info_metrics`, with every engine."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.envs.test_engines import actions_of, trajectory

from lockstep.envs.catalog import make_engine
from lockstep.envs.engine import EnvironmentFailed
from lockstep.envs.infos import Entry, batch_values
from lockstep.envs.layout import ContractViolation
from lockstep.envs.settings import EnvConfig

ENV_ID = "lockstep-tests/InfoMetrics-v0"
LENGTH = 4


class Info(gym.Env[Any, Any]):
    """Environment whose episodes have 4 steps, or 2 to 5 if `varied`. It reports half of its steps and a random number."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, varied: bool = False, render_mode: str | None = None) -> None:
        self.varied = varied

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.draw = float(self.np_random.random())
        self.length = 2 + int(4 * self.draw) if self.varied else LENGTH
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        values: dict[str, Any] = {"text": "done", "infinite": np.inf, "pair": [1, 2]}
        info = {"draw": self.draw, "is_success": np.bool_(True), "maybe": np.nan, "half": self.steps / 2} | values
        ended = self.steps == self.length
        return np.zeros(2, np.float32), 1.0, False, ended, info if ended else {}


@pytest.fixture(autouse=True)
def registered() -> None:
    if ENV_ID not in gym.registry:
        gym.register(ENV_ID, Info)


def collected(
    engine_name: Any, names: tuple[str, ...], steps: int = 2 * (LENGTH + 1), options: dict[str, Any] | None = None
) -> np.ndarray:
    """Return the numbers `[steps, 2, K]`."""
    engine = make_engine(EnvConfig(ENV_ID, engine_name, 2, options=options or {}, info_metrics=names), 0, 0, 1)
    try:
        engine.reset()
        found = []
        for action in actions_of(engine.spaces, steps, 2):
            engine.step(action)
            found.append(np.array(engine.infos))
        return np.array(found)
    finally:
        engine.close()


def test_entry_of_nested_and_masked_infos() -> None:
    episode = {"r": np.array([1.0, 2.0]), "_r": np.array([False, True]), "l": np.array([3, 4])}
    mask = np.array([False, True])
    infos = {"episode": episode, "_episode": mask, "pair": (np.array([5, 6]), np.array([[7], [8]])), "version": 9}
    assert dict(Entry(infos, 0)) == {"pair": (5, [7]), "version": 9}
    assert Entry(infos, 1)["episode"] == {"r": 2.0, "l": 4}
    assert list(Entry(infos, 1)) == ["episode", "pair", "version"]
    with pytest.raises(KeyError):
        Entry(infos, 0)["episode"]


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


@pytest.mark.parametrize("engine", ["gymnasium", "gymnasium-async"])
def test_environment_whose_episode_goes_on_has_no_number(engine: str) -> None:
    found = collected(engine, ("half", "draw"), 12, {"varied": True})
    ended = ~np.isnan(found)
    assert (ended[..., 0] == ended[..., 1]).all()
    assert (ended[..., 0].sum(axis=1) == 1).any(), "in no step did exactly one episode end"
    for half, draw in found[ended[..., 0]]:
        assert half * 2 == 2 + int(4 * draw)


def test_numbers_of_a_batch_are_those_of_environments_that_have_them() -> None:
    infos = {"x": np.array([1.0, 0.0, 3.0]), "_x": np.array([True, False, True])}
    values = batch_values(("x",), infos, np.array([True, False, False]))
    assert values.tolist() == pytest.approx(np.array([[1], [np.nan], [np.nan]]), nan_ok=True)
    with pytest.raises(ContractViolation, match=r"returned no 'x' in info"):
        batch_values(("x",), infos, np.array([False, True, False]))


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
