"""One environment whose every episode is a function of (experiment's seed, environment, episode, actions)."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.spaces.utils import flatdim
from numpy.typing import NDArray

from lockstep.envs.single import Recipe
from lockstep.envs.spaces import flat_dtype, flattener
from lockstep.randomness import EnvironmentSeeds

__all__ = ["KeyedEpisodes", "Past", "each_action"]


@dataclass(frozen=True)
class Past:
    """Where an environment was: in episode `episode` (from 0), after `actions` `[n, …]` in it."""

    episode: int
    actions: NDArray[Any]


class KeyedEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Flattens observations, resets itself on the step after an episode's end, and can begin in the middle of an episode.

    Episode e of environment i begins with `reset(seed=seeds(i, e))`. So the past of an environment is
    its episode's number and the actions since its start: that is how engines restore environments that can't be saved.
    The `info` of the environment is dropped: nobody reads it, and between processes it costs more than the observation.
    """

    def __init__(self, recipe: Recipe, seeds: EnvironmentSeeds, index: int, past: Past | None = None) -> None:
        """`index` is the environment's number over all shards."""
        env = recipe()
        super().__init__(env)
        self._recipe = recipe
        self.observation_space = Box(
            -np.inf, np.inf, (flatdim(env.observation_space),), flat_dtype(env.observation_space).type
        )
        self.episode = -1
        self.waiting = False
        self._seeds = seeds
        self._index = index
        self._past = past
        self._flatten = flattener(env.observation_space)
        self._step = env.step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins the first episode, or replays the past. `seed` and `options` are not used: episodes have their own seeds."""
        if self._past is None:
            return self._begin(0), {}
        observation = self._begin(self._past.episode)
        for action in each_action(self._past.actions):
            observation, _, _, _, _ = self.step(action)
        return observation, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.waiting:
            return self._begin(self.episode + 1), 0.0, False, False, {}
        observation, reward, terminated, truncated, _ = self._step(action)
        if terminated or truncated:
            self.waiting = True
        if self._flatten is not None:
            observation = self._flatten(observation)
        return observation, reward, terminated, truncated, {}

    def _begin(self, episode: int) -> Any:
        if self.episode >= 0 and self._recipe.carries_over:
            self.env.close()
            self.env = self._recipe()
            self._step = self.env.step
        self.episode = episode
        self.waiting = False
        observation, _ = self.env.reset(seed=self._seeds(self._index, episode))
        return observation if self._flatten is None else self._flatten(observation)


def each_action(actions: NDArray[Any]) -> Any:
    """One action per row of `[n, …]`: discrete ones as int, which environments check and index with faster than NumPy's."""
    return actions.tolist() if actions.ndim == 1 else actions
