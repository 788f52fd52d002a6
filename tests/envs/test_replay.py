"""Restore by replay: environments that change their actions, keep state across episodes, are slow, or hang."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as kinds
from gymnasium.wrappers import NormalizeReward

from lockstep.cli.main import main
from lockstep.envs import history
from lockstep.envs.catalog import make_engine
from lockstep.envs.engine import Engine, EnvironmentFailed
from lockstep.envs.functions import register_function
from lockstep.envs.settings import EnvConfig
from lockstep.envs.subprocesses import SubprocessEngine
from lockstep.run.stop import listening

ENGINES = ["gymnasium", pytest.param("gymnasium-async", marks=pytest.mark.serial)]
HAND_SPACE = kinds.Box(0, 2, (2,), np.float32)
ACTION_SPACES: dict[str, gym.Space[Any]] = {
    "box": HAND_SPACE,
    "dict": kinds.Dict(foot=kinds.Discrete(3), hand=HAND_SPACE),
    "choices": kinds.MultiDiscrete([3, 4]),
}


class Doubling(gym.Env[Any, Any]):
    """Environment that adds up its actions, and doubles the arrays that it receives; an episode has 9 steps."""

    observation_space = kinds.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, acted: str) -> None:
        self.action_space = ACTION_SPACES[acted]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.sum = 0, self.np_random.normal(size=2).astype(np.float32)
        return self.sum.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        hand = action["hand"] if isinstance(action, dict) else action
        assert self.action_space.contains(action), action
        self.sum += hand
        hand *= 2
        self.steps += 1
        return self.sum.copy(), float(self.sum[0]), self.steps == 9, False, {}


class Counting(gym.Env[Any, Any]):
    """Environment with zeros as observations, in which episodes end after 5 steps and 3 steps by turns."""

    observation_space, action_space = kinds.Box(0, 1, (1,), np.float32), kinds.Discrete(2)
    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episodes += 1
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == (5 if self.episodes % 2 else 3), False, {}


class Slow(Counting):
    """Environment whose step i takes `seconds[i]`, or the last of them; a negative number ends the process.

    Workers are forks, and so inherit `seconds`.
    """

    seconds: tuple[float, ...] = (0.0,)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seconds = self.seconds[min(self.steps, len(self.seconds) - 1)]
        if seconds < 0:
            os._exit(7)
        time.sleep(seconds)
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, False, False, {}


def engine_of(make: Any, name: str, timeout: float = 20.0, **options: str) -> Engine:
    config = EnvConfig(
        id=register_function(make, f"{make.__name__}()"), engine=name, count=2, timeout=timeout, options=options
    )  # type: ignore[arg-type]
    return make_engine(config, 1, 0, 1)


def copy_of(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value.copy() for name, value in state.items()}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("acted", ACTION_SPACES)
def test_environments_may_change_their_actions_in_place(name: str, acted: str) -> None:
    engine = engine_of(Doubling, name, acted=acted)
    engine.reset()
    draw = np.random.default_rng(1)
    width = engine.spaces.action_size
    actions = draw.integers(0, 3, (20, 2, width)).astype(np.float32)
    original = actions.copy()
    steps = [np.array(engine.step(row)[0]) for row in actions[:14]]
    state = copy_of(engine.state())
    after = [np.array(engine.step(row)[0]) for row in actions[14:]]
    assert np.array_equal(actions, original)
    for _ in range(2):  # the second time shows whether the first has changed the state
        before = copy_of(state)
        assert engine.restore(state).tobytes() == steps[-1].tobytes()
        assert all(state[key].tobytes() == before[key].tobytes() for key in state)
        assert all(engine.state()[key].tobytes() == before[key].tobytes() for key in state)
    restored = [np.array(engine.step(row)[0]) for row in actions[14:]]
    engine.close()
    assert all(one.tobytes() == other.tobytes() for one, other in zip(after, restored, strict=True))


def Normalized() -> gym.Env[Any, Any]:  # noqa: N802
    return NormalizeReward(gym.make("CartPole-v1", max_episode_steps=10))


@pytest.mark.parametrize("name", ENGINES)
def test_rewards_that_depend_on_earlier_episodes_are_refused(name: str) -> None:
    engine = engine_of(Normalized, name)
    engine.reset()
    actions = np.arange(40).reshape(20, 2) // 2 % 2
    for row in actions[:5]:
        engine.step(row)
    engine.restore(engine.state())  # the first episode depends on no earlier one
    for row in actions:
        engine.step(row)
    state = engine.state()
    line = (
        r"^env.id is 'Normalized\(\)': environment 0 returned different rewards when its actions were replayed: .*NormalizeReward.*; "
        r".*ppo.normalize_rewards in a new run$"
    )
    with pytest.raises(ValueError, match=line):
        engine.restore(state)
    del state["returns"]  # like a checkpoint of an earlier version
    engine.restore(state)
    assert engine.state()["returns"].shape == (2,)
    engine.close()


@pytest.mark.parametrize("steps", [8, 9, 10])
def test_a_replay_in_which_the_episode_ends_later_is_refused(steps: int) -> None:
    engine = engine_of(Counting, "gymnasium")
    engine.reset()
    for _ in range(steps):  # 5 steps, a reset, 3 steps: in the replay, the second episode is the first, with 5 steps
        engine.step(np.zeros(2, np.int64))
    state = engine.state()
    if steps == 9:
        with pytest.raises(ValueError, match=r"environment 0 reached a different state"):
            engine.restore(state)
    else:
        engine.restore(state)
    engine.close()


@pytest.mark.parametrize("name", ["episodes", "waiting", "lengths", "returns", "observations"])
def test_a_state_with_another_number_of_environments_is_refused(name: str) -> None:
    engine = engine_of(Counting, "gymnasium")
    engine.reset()
    engine.step(np.zeros(2, np.int64))
    state = engine.state()
    state[name] = state[name][:1]
    with pytest.raises(ValueError, match="does not hold the state of 2 environments"):
        engine.restore(state)
    engine.close()


def engine_and_state(monkeypatch: pytest.MonkeyPatch, timeout: float, *seconds: float) -> tuple[SubprocessEngine, Any]:
    """Return an engine after 8 fast steps, and its state. Step i of its next workers takes `seconds[i]`."""
    engine = engine_of(Slow, "gymnasium-async", timeout)
    assert isinstance(engine, SubprocessEngine)
    engine.reset()
    for _ in range(8):
        engine.step(np.zeros(2, np.int64))
    monkeypatch.setattr(Slow, "seconds", seconds)
    return engine, engine.state()


@pytest.mark.serial
def test_the_timeout_applies_to_each_replayed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, state = engine_and_state(monkeypatch, 1.0, 0.2)
    engine.restore(state)
    assert engine.state()["returns"].tolist() == [8.0, 8.0]
    engine.close()


@pytest.mark.serial
def test_hanging_replay_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, state = engine_and_state(monkeypatch, 0.5, 0.0, 0.0, 0.0, 600.0)
    state["lengths"], state["actions"] = np.array([2, 4]), state["actions"][:6]
    line = r"^environment 1 of Slow\(\) did not answer to replay within env.timeout = 0.5 seconds$"
    with pytest.raises(EnvironmentFailed, match=line):
        engine.restore(state)
    engine.close()


@pytest.mark.serial
def test_worker_killed_during_a_replay_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, state = engine_and_state(monkeypatch, 0.5, 0.0, 0.0, 0.2, 0.2, 0.2, 0.2, -1.0)
    state["lengths"], state["actions"] = np.array([5, 8]), state["actions"][:13]
    line = r"^the process of environment 1 \(exit code 7\) of Slow\(\) died during replay$"
    with pytest.raises(EnvironmentFailed, match=line):
        engine.restore(state)
    engine.close()


MODULE = """
import gymnasium as gym
from gymnasium.wrappers import NormalizeReward

gym.register("Normalized-v0", lambda: NormalizeReward(gym.make("CartPole-v1")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="engine gymnasium-async needs Linux")
def test_resume_accepts_a_timeout_and_refuses_different_rewards(run_cli: Any, tmp_path: Path) -> None:
    (tmp_path / "scaled.py").write_text(MODULE)
    module = ("--env.module", "scaled")
    shape = (
        "--env.count",
        2,
        "--rollout.steps",
        64,
        "--ppo.epochs",
        1,
        "--ppo.minibatches",
        1,
        "--run.progress",
        "off",
    )
    async_run = ("--env", "CartPole-v1", "--env.engine", "gymnasium-async", "--total-steps", 256, "--name", "async")
    assert run_cli("train", *async_run, *shape).rc == 0
    rc, out, err = run_cli("resume", "async", "--env.timeout", 0.0, "--total-steps", 384)
    assert (rc, err) == (2, "lockstep: env.timeout is 0.0: it must be above 0 and at most 1e6 seconds\n")
    rc, out, err = run_cli("resume", "async", "--env.timeout", 100, "--total-steps", 384)
    assert rc == 0, out + err
    assert '"timeout": 100.0' in (tmp_path / "runs" / "async" / "config.json").read_text()

    scaled = ("--env", "Normalized-v0", *module, "--total-steps", 256, "--name", "scaled")
    assert run_cli("train", *scaled, *shape).rc == 0
    rc, out, err = run_cli("resume", "scaled", *module, "--total-steps", 384)
    assert rc == 2, out + err
    assert "returned different rewards when its actions were replayed" in err
    assert err.count("\n") == 1


def test_training_warns_of_long_episodes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(history, "_LONG", 300)
    shape = ("--env.count", "2", "--rollout.steps", "64", "--ppo.minibatches", "1", "--total-steps", "768")
    where = ("--out", str(tmp_path), "--run.progress", "off", "--run.checkpoint-every", "2", "--runtime.compile", "off")
    where += ("--restarts", "0")  # only this process has the smaller limit
    endless = ("--env", "Pendulum-v1", "--env.engine", "gymnasium", "--env.options", "{max_episode_steps: -1}")
    with listening():  # restores the signal handlers
        assert main(["train", *endless, *shape, *where]) == 0
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1, lines
    assert lines[0].startswith("env.id is 'Pendulum-v1': environment 0 has taken 384 steps in one episode: ")
