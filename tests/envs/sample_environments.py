"""Small environments with every kind of space, registered with Gymnasium under `lockstep-tests/`."""

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as kinds
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

PREFIX = "lockstep-tests"
LENGTH = 7
"""Number of steps of an episode."""


class Sampled(gym.Env[Any, Any]):
    """Environment that returns samples of its observation space, and checks that actions are in its action space.

    An episode has 7 steps. The observations depend only on the seed, the rewards on the actions.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        masked: str = "",
        ends: int = LENGTH,
        render_mode: str | None = None,
    ) -> None:
        """Create the environment with the given spaces.

        `masked` is "info" for a mask in `info`, or "none" for one that forbids everything in the step before the last.
        `ends` is the number of steps of an episode, which terminates if it is even, and is truncated if it is odd.
        """
        self.observation_space, self.action_space = observation_space, action_space
        self.masked, self.ends = masked, ends
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), (action, self.action_space)
        self.steps += 1
        ended = self.steps == self.ends
        reward = float(np.sum(np.abs(np.concatenate([np.ravel(part) for part in parts(action)]))))
        return self.observation(), reward, ended and self.ends % 2 == 0, ended and self.ends % 2 == 1, self.info()

    def observation(self) -> Any:
        return self.observation_space.sample()

    def info(self) -> dict[str, Any]:
        if not self.masked:
            return {}
        mask = np.array([1, 0, self.steps % 2, 1, 0], dtype=np.int8)
        if self.masked == "none" and self.steps == self.ends - 1:
            mask[:] = 0
        if self.steps == self.ends:
            mask[:] = 0  # no action follows the last observation
        return {"action_mask": (mask[:3], mask[3:]) if isinstance(self.action_space, kinds.Tuple) else mask}


def parts(action: Any) -> list[Any]:
    """Return the arrays and numbers in an action."""
    if isinstance(action, dict):
        return [leaf for part in action.values() for leaf in parts(part)]
    return [leaf for part in action for leaf in parts(part)] if isinstance(action, tuple) else [action]


class Wrong(Sampled):
    """Environment with an invalid observation or mask, in episode 0 or 1; `wrong` names the error."""

    def __init__(self, wrong: str, render_mode: str | None = None) -> None:
        space = {"value": kinds.Discrete(4), "far": kinds.Tuple((kinds.Discrete(3), kinds.Discrete(4)))}.get(
            wrong, kinds.Box(-1, 1, (3,))
        )
        space = kinds.Dict(place=space) if wrong == "missing" else space
        super().__init__(space, kinds.Discrete(5), "none" if wrong == "mask" else "")
        self.wrong, self.episode = wrong, -1

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        self.episode += 1
        return super().reset(**keywords)

    def observation(self) -> Any:
        value = super().observation()
        if self.steps == 3 and self.wrong in ("value", "far"):
            return 4 if self.wrong == "value" else (1, -1)
        if self.episode == 1 and self.steps == 0:
            match self.wrong:
                case "shape":
                    return value[:2]
                case "type":
                    return value.astype(np.float64)
                case "missing":
                    return {"plaice": value["place"]}
        return value


IMAGE = kinds.Box(0, 255, (6, 5, 3), np.uint8)
NUMBERS = kinds.Box(-1, 1, (2, 3), np.float64)
SEEN: dict[str, gym.Space[Any]] = {
    "Image": IMAGE,
    "Grey": kinds.Box(0, 255, (4, 5), np.uint8),
    "Stack": kinds.Box(0, 255, (2, 5, 4), np.uint8),
    "Mixed": kinds.Dict(
        z=kinds.Tuple((kinds.Discrete(3, start=-1), IMAGE)),
        eye=kinds.Box(0, 255, (4, 5), np.uint8),
        bits=kinds.MultiBinary(3),
        count=kinds.MultiDiscrete([2, 3]),
        numbers=NUMBERS,
    ),
    "Masked": kinds.Dict(at=kinds.Discrete(4), action_mask=kinds.Box(1, 1, (5,), np.int8)),
    "Numbers": kinds.Box(-1, 1, (3,), np.float32),
    "Info": kinds.Discrete(6),
    "Parts": kinds.Box(-1, 1, (3,), np.float32),
}
"""Observation spaces by the name of the environment."""
ACTED: dict[str, gym.Space[Any]] = {
    "Grey": kinds.MultiBinary(2),
    "Stack": kinds.Box(-1, 1, (2,), np.float32),
    "Mixed": kinds.Dict(
        hand=kinds.Box(-2, 2, (2,), np.float32),
        fingers=kinds.MultiDiscrete([3, 4], start=[1, 0]),
        foot=kinds.Tuple((kinds.Discrete(2, start=5), kinds.Box(0, 1, (1, 1), np.float32))),
        toes=kinds.MultiBinary(2),
    ),
    "Numbers": kinds.MultiDiscrete([3, 2]),
    "Parts": kinds.Tuple((kinds.Discrete(3), kinds.Discrete(2))),
}
"""Action spaces by the name of the environment; others have Discrete(5)."""
MASKS = {"Info": "info", "Parts": "info"}


class Spoiled(CartPoleEnv):
    """CartPole in which some episodes have a reward or an observation that is not finite, in their second step."""

    def __init__(self, share: float = 0.1, spoil: str = "both", render_mode: str | None = None) -> None:
        """`share` is the fraction of these episodes, and `spoil` says what is spoiled: `reward`, `observation`, or `both` in turn."""
        super().__init__(render_mode=render_mode)
        self.share, self.spoil = share, spoil

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        self.steps, self.draw = 0, (observation[0] / 0.05 + 1) / 2  # uniform in [0, 1]
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        self.steps += 1
        if self.steps == 2 and self.draw < self.share:
            if self.spoil == "reward" or (self.spoil == "both" and self.draw < self.share / 2):
                return observation, float("inf" if self.draw < self.share / 4 else "nan"), *rest  # type: ignore[return-value]
            observation = observation * np.float32(np.nan)
        return observation, reward, *rest  # type: ignore[return-value]


def make(name: str, **options: Any) -> gym.Env[Any, Any]:
    if name == "Wrong":
        return Wrong(**options)
    return Sampled(deepcopy(SEEN[name]), ACTED.get(name, kinds.Discrete(5)), MASKS.get(name, ""), **options)


def batch(num_envs: int, name: str, **options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: make(name, **options)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


def register() -> None:
    """Register the environments with Gymnasium. May be called more than once."""
    for name in [*SEEN, "Wrong"]:
        if f"{PREFIX}/{name}-v0" not in gym.registry:
            gym.register(f"{PREFIX}/{name}-v0", make, vector_entry_point=batch, kwargs={"name": name})
    if f"{PREFIX}/Spoiled-v0" not in gym.registry:
        gym.register(f"{PREFIX}/Spoiled-v0", Spoiled, max_episode_steps=50)
