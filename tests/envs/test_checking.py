"""Checks of an environment: each kind of fault is found, and environments without faults pass."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

import lockstep
from lockstep.envs.checking import Finding

created = 0


class Walk(gym.Env[Any, Any]):
    """Random walk of at most 30 steps, with the fault that `fault` names."""

    def __init__(self, fault: str = "") -> None:
        global created
        created += 1
        self.fault, self.instance, self.episode = fault, created, 0
        self.precision = np.float64 if fault == "large" else np.float32
        self.observation_space, self.action_space = Box(-50, 50, (2,), self.precision), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.place = 0, float(self.np_random.normal())
        self.episode += 1
        return self._observation(), {}

    def _observation(self) -> Any:
        place = self.place
        if self.fault == "shared state" and self.steps == 3:
            place += self.instance
        if self.fault == "earlier episodes" and self.steps == 3:
            place += self.episode
        if self.fault == "bounds" and self.steps == 3:
            place = 60
        if self.fault == "large" and self.steps == 3:
            place = 1e39
        return np.array([place, self.steps], self.precision)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.fault == "raises" and self.steps == 4:
            raise KeyError("door")
        self.steps += 1
        self.place += float(self.np_random.normal()) * (2 * int(action) - 1)
        reward = np.nan if self.fault == "nan" and self.steps == 2 else self.place * (self.fault != "sparse")
        ended = self.steps == 30 and self.fault != "endless"
        if self.fault == "vector reward":
            return self._observation(), np.ones(1), ended, False, {}  # type: ignore[return-value]
        if self.fault == "no end":
            return self._observation(), float(reward), None, False, {}  # type: ignore[return-value]
        return self._observation(), float(reward), ended, False, {}


class Masked(Walk):
    """The same, with a mask that allows one of two actions; the other one is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Dict({"place": Box(-50, 50, (2,), np.float32), "action_mask": MultiBinary(2)})  # type: ignore[assignment]

    def _observation(self) -> Any:
        return {"place": super()._observation(), "action_mask": np.array([self.steps % 2, 1 - self.steps % 2], np.int8)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._observation()["action_mask"][action]
        return super().step(action)


class MaskedByInfo(Walk):
    """The same, with a mask in info."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {"action_mask": np.array([1, 1], np.int8)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {"action_mask": np.array([1, 1], np.int8)}


class HighForce(Walk):
    """The same, with an action that has only a lower bound, a high one, and an observation without entries."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Box(5000, np.inf, (1,))  # type: ignore[assignment]
        self.observation_space = Dict({"nothing": Box(-1, 1, (0,)), "place": Box(-50, 50, (2,))})  # type: ignore[assignment]

    def _observation(self) -> Any:
        return {"nothing": np.zeros(0, np.float32), "place": super()._observation()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert 5000 <= action[0] <= 6000
        return super().step(1)


def found(fault: str) -> dict[str, Finding]:
    return {finding.name: finding for finding in lockstep.check_env(Walk, fault=fault)}


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", Masked, MaskedByInfo, HighForce, Walk])
def test_environment_without_faults_passes(env: Any) -> None:
    levels = {finding.name: finding.level for finding in lockstep.check_env(env)}
    assert "fail" not in levels.values(), levels
    assert levels["determinism"] == levels["independence"] == levels["resume"] == "ok"


@pytest.mark.parametrize(
    ("fault", "name", "level", "text"),
    [
        (
            "shared state",
            "determinism",
            "fail",
            "observation after step 3 of episode 0 differs in a second environment",
        ),
        (
            "earlier episodes",
            "independence",
            "fail",
            "observation after step 3 of episode 1 differs if the environment",
        ),
        ("nan", "rewards", "fail", "3 of 90 values are NaN or infinite"),
        ("large", "observations", "fail", "3 of 186 values are NaN or infinite in float32"),
        (
            "vector reward",
            "episodes",
            "fail",
            "returned a reward of type ndarray (array([1.])); the reward must be a number",
        ),
        ("no end", "episodes", "fail", "returned terminated of type NoneType (None); it must be a bool"),
        ("bounds", "bounds", "note", "3 of 186 values of observations lie outside of the space"),
        ("raises", "episodes", "fail", "failed: KeyError: 'door'"),
        ("sparse", "rewards", "note", "the reward is sparse"),
        ("endless", "episodes", "note", "not every episode ended: pass max_episode_steps to register"),
    ],
)
def test_fault_is_found(fault: str, name: str, level: str, text: str) -> None:
    finding = found(fault)[name]
    assert finding.level == level
    assert text in finding.text


def test_equal_rewards_are_no_range() -> None:
    assert Finding("rewards", "ok", "finite, all 1") in lockstep.check_env("CartPole-v1")


def test_episodes_of_a_slow_environment_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for an episode is set to 0: each has the least number of steps, and is repeated for as many."""
    monkeypatch.setattr("lockstep.envs.checking._SECONDS", 0.0)
    findings = {finding.name: finding for finding in lockstep.check_env(partial(Walk, "endless"))}
    assert findings["episodes"].text.startswith("100 steps, ")
    assert "the environment is slow, so episodes were cut after 0 s; no time limit" in findings["episodes"].text
    assert findings["determinism"].level == findings["independence"].level == "ok"


def test_environment_that_depends_on_earlier_episodes_can_not_be_resumed() -> None:
    findings = found("earlier episodes")
    assert findings["determinism"].level == "ok"
    assert findings["resume"].level == "fail"
    assert "independence" not in found("shared state"), "it shows nothing if episodes are not deterministic"


def test_instance_of_gymnasium_is_checked_by_new_ones() -> None:
    env = gym.make("CartPole-v1", max_episode_steps=7)
    findings = {finding.name: finding for finding in lockstep.check_env(env)}
    assert findings["episodes"] == Finding("episodes", "ok", "7 steps, return 7 with random actions")
    assert all(finding.level != "fail" for finding in findings.values())
    with pytest.raises(ValueError, match=r"^env is an instance of Walk: training needs several environments"):
        lockstep.check_env(Walk())


def test_unsupported_space_raises_in_one_line() -> None:
    with pytest.raises(ValueError, match="there is no such environment"):
        lockstep.check_env("CartPole-v9x")
