"""An environment that fails in one step of the episode with a given seed, for tests of `env.on_fault`."""

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from lockstep.randomness import EnvironmentSeeds

__all__ = ["ENV_ID", "KINDS", "Failing", "seed_of_episode"]

ENV_ID = "lockstep-tests/Failing-v0"
LENGTH = 6
"""Number of steps of an episode."""


def _raise() -> None:
    raise RuntimeError("this environment fails")


_ACTIONS: dict[str, Callable[[], object]] = {
    "raise": _raise,
    "exit": lambda: os._exit(7),
    "segfault": lambda: ctypes.string_at(0),
    "hang": lambda: time.sleep(1000),
}
_OBSERVATIONS = {
    "NaN": np.full(2, np.nan, np.float32),
    "infinity": np.full(2, np.inf, np.float32),
    "shape": np.zeros(3, np.float32),
    "dtype": np.zeros(2, np.float64),
}
_REWARDS = {"NaN reward": np.nan, "text reward": "1"}
KINDS = (*_ACTIONS, *_OBSERVATIONS, *_REWARDS)
"""Ways to fail."""


def seed_of_episode(seed: int, environments: int, environment: int, episode: int) -> int:
    """Return the seed of an episode of a run with this seed and number of environments."""
    return EnvironmentSeeds(seed, "episode", environments)(environment, episode)


class Failing(gym.Env[Any, Any]):
    """Environment that shows its seed and its step. Its rewards are its actions."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, kind: str = "none", failing: int = -1, at: int = 3, render_mode: str | None = None) -> None:
        """Fail in step `at` of the episode with the seed `failing`; 0: in its reset. `failing` -2: in every episode."""
        self.kind, self.failing, self.at = kind, failing, at
        self.steps, self.fails = 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.fails = 0, self.failing in (seed, -2)
        self.place = float((seed or 0) % 1000)
        return self.observation(), {}

    def observation(self) -> Any:
        if self.fails and self.steps == self.at:
            _ACTIONS.get(self.kind, lambda: None)()
            return _OBSERVATIONS.get(self.kind, np.zeros(2, np.float32))
        return np.array([self.place, self.steps], np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = _REWARDS.get(self.kind, 0.0) if self.fails and self.steps == self.at else float(action)
        return self.observation(), reward, self.steps == LENGTH, False, {}


gym.register(ENV_ID, Failing)  # type: ignore[arg-type]
