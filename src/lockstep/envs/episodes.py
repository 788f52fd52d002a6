"""One environment whose every episode is a function of (experiment's seed, environment, episode, actions)."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Tuple
from numpy.typing import NDArray

from lockstep.envs.actions import action_converter, each_action
from lockstep.envs.interface import Interface, exited, reset_values
from lockstep.envs.layout import ContractViolation
from lockstep.envs.single import Recipe
from lockstep.randomness import EnvironmentSeeds

__all__ = ["KeyedEpisodes", "Past", "keepable", "replayable"]

_OLD_STEP = (
    "returned 4 values from step: Gymnasium's API returns (observation, reward, terminated, truncated, info); an environment of "
    "the old Gym API must be converted, for example with shimmy"
)


@dataclass(frozen=True)
class Past:
    """Where an environment was: in episode `episode` (from 0), after `actions` `[n, …]` in it."""

    episode: int
    actions: NDArray[Any]
    """As `History` keeps them."""


class KeyedEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Gives observations as rows, resets itself on the step after an episode's end, and can begin in the middle of an episode.

    An observation is its row `[O]`, or `(row, pixels)` where there are images. Episode e of environment i begins with
    `reset(seed=seeds(i, e))`. So the past of an environment is its episode's number and the actions since its start: that is how engines
    restore environments that can't be saved. The `info` of the environment is dropped, but for its mask: nobody reads it, and between
    processes it costs more than the observation.
    """

    def __init__(
        self,
        recipe: Recipe,
        interface: Interface,
        seeds: EnvironmentSeeds,
        index: int,
        past: Past | None = None,
        progress: NDArray[np.int64] | None = None,
    ) -> None:
        """`interface` is the recipe's; `index` is the environment's number over all shards; `progress`, `[1]`, counts the steps of a replay."""
        super().__init__(recipe())
        spaces, layout = interface.spaces, interface.layout
        rows = Box(-np.inf, np.inf, (spaces.observation_size,), layout.dtype.type)
        pixels = Box(0, 255, (spaces.pixel_count,), np.uint8)
        self.observation_space = Tuple((rows, pixels)) if spaces.images else rows
        self.episode = -1
        self.waiting = False
        self._recipe = recipe
        self._seeds = seeds
        self._index = index
        self._past = past
        self._progress = np.zeros(1, dtype=np.int64) if progress is None else progress
        self._layout = layout
        self._images = bool(spaces.images)
        self._plain = layout.plain
        self._step = self.env.step
        self._shape = rows.shape
        self._first = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins the first episode, or replays the past. `seed` and `options` are not used: episodes have their own seeds.

        After a replay `info` has the number of the episode, whether it has ended, and the sum of its rewards, under their names in a
        history's state.
        """
        if self._past is None:
            return self._begin(0), {}
        observation, returned = self._begin(self._past.episode), 0.0
        self._progress += 1
        for action in each_action(replayable(self.action_space, self._past.actions)):
            observation, reward, _, _, _ = self.step(action)
            returned += float(reward)
            self._progress += 1
        return observation, {"episodes": self.episode, "waiting": self.waiting, "returns": returned}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.waiting:
            return self._begin(self.episode + 1), 0.0, False, False, {}
        try:
            observation, reward, terminated, truncated, info = self._step(action)
        except SystemExit as error:
            raise ContractViolation(exited(error)) from error
        except ValueError as error:  # also from a wrapper of Gymnasium between the environment and here
            if str(error) != "not enough values to unpack (expected 5, got 4)":
                raise
            raise ContractViolation(_OLD_STEP) from error
        # NumPy would broadcast an observation of shape (1,)
        if self._first or reward is None or (self._plain and getattr(observation, "shape", None) != self._shape):
            self._check(observation, reward)
        if terminated or truncated:
            self.waiting = True
        if not self._plain:
            try:
                observation = self._seen(observation, info)
            except ContractViolation as error:
                raise ContractViolation(f"{error} (after action {action} in episode {self.episode})") from None
            except Exception:
                self._layout.check(observation)
                raise
        return observation, reward, terminated, truncated, {}

    def _begin(self, episode: int) -> Any:
        if self.episode >= 0 and self._recipe.carries_over:
            self.env.close()
            self.env = self._recipe()
            self._step = self.env.step
        self.episode = episode
        self.waiting = False
        self._first = True
        try:
            observation, info = reset_values(self.env.reset(seed=self._seeds(self._index, episode)))
        except SystemExit as error:
            raise ContractViolation(exited(error)) from error
        try:
            self._layout.check(observation)
            return self._seen(observation, info)
        except ContractViolation as error:
            raise ContractViolation(f"{error} (after the reset to episode {episode})") from None

    def _check(self, observation: Any, reward: Any) -> None:
        """Check a step: the first of an episode, and any other that looks wrong. To check all would cost a fast environment over 1%."""
        self._first = False
        number = np.asarray(reward)
        if number.size != 1 or number.dtype.kind not in "biuf":
            raise ContractViolation(
                f"returned a reward of type {type(reward).__name__} ({reward!r}); a number was promised"
            )
        if self._plain:
            self._layout.check(observation)

    def _seen(self, observation: Any, info: dict[str, Any]) -> Any:
        row = self._layout.row(observation, info, self.waiting)
        return (row, self._layout.pixels(observation)) if self._images else row


def keepable(actions: NDArray[Any], taken: Any) -> NDArray[Any]:
    """What a history keeps of a batch of actions, as `action_converter` got them and gave them: what was taken, if that is an array."""
    return taken if isinstance(taken, np.ndarray) else actions


def replayable(space: gym.Space[Any], kept: NDArray[Any]) -> Any:
    """What was taken, of what a history kept. It gives fresh arrays: environments may change their actions in place."""
    return action_converter(space)(kept) if isinstance(space, (Dict, Tuple)) else kept.copy()
