"""A single environment whose episodes depend only on (seed of the experiment, environment, episode, actions)."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Tuple
from numpy.typing import NDArray

from lockstep.envs.actions import action_converter, each_action
from lockstep.envs.env_factory import EnvFactory
from lockstep.envs.infos import EPISODE_INFO, episode_values
from lockstep.envs.interface import Interface, exit_text, split_reset
from lockstep.envs.layout import ContractViolation
from lockstep.processes.heartbeat import beat
from lockstep.randomness import EnvironmentSeeds

__all__ = ["EpisodeLog", "SeededEpisodes", "actions_to_log", "actions_to_replay"]

_OLD_STEP = (
    "returned 4 values from step: Gymnasium's API returns (observation, reward, terminated, truncated, info); an environment of "
    "the old Gym API must be converted, for example with shimmy"
)


@dataclass(frozen=True)
class EpisodeLog:
    """Running episode of one environment: its number (from 0), and the actions `[n, …]` taken in it so far."""

    episode: int
    actions: NDArray[Any]
    """Actions as `History` keeps them."""
    lost: bool = False
    """True if the environment has failed and the episode was dropped: the next step is a reset."""


class SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper with observations as rows, next-step autoreset, seeded episodes and replay.

    An observation is its row `[O]`, or `(row, pixels)` for an environment with images. Episode e of environment i
    begins with `reset(seed=seeds(i, e))`. So the number of the episode and the actions since its start determine the
    state of the environment: engines restore environments from these by replay. The wrapper drops the `info` of the
    environment, except for its mask and `env.info_metrics`: no caller reads it, and sending it between processes costs
    more than sending the observation.
    """

    def __init__(
        self,
        factory: EnvFactory,
        interface: Interface,
        seeds: EnvironmentSeeds,
        index: int,
        log: EpisodeLog | None = None,
        progress: NDArray[np.int64] | None = None,
        strict: bool = False,
    ) -> None:
        """Create environment `index`, counted over all shards, with the `interface` of its factory.

        The first `reset` replays `log`. It adds 1 to `progress`, an array `[1]`, for the reset and for each replayed
        step. With `strict`, shapes and types are checked in every step.
        """
        super().__init__(factory())
        spaces, layout = interface.spaces, interface.layout
        rows = Box(-np.inf, np.inf, (spaces.observation_size,), layout.dtype.type)
        pixels = Box(0, 255, (spaces.pixel_count,), np.uint8)
        self.observation_space = Tuple((rows, pixels)) if spaces.images else rows
        self.episode = -1
        """Number of the running episode; -1 before the first reset."""
        self.waiting = False
        """True if the episode has ended, so that the next step is a reset."""
        self._factory = factory
        self._seeds = seeds
        self._index = index
        self._log = log
        self._progress = np.zeros(1, dtype=np.int64) if progress is None else progress
        self._layout = layout
        self._info_metrics = factory.info_metrics
        self._has_images, self._pixel_count = bool(spaces.images), spaces.pixel_count
        self._plain = layout.plain
        self._step = self.env.step
        self._shape = rows.shape
        self._strict = strict
        self._check_next = strict

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the first episode, or replay the log. `seed` and `options` are ignored: episodes have their own seeds.

        After a replay, `info` holds the number of the episode, whether it has ended, and the sum of its rewards, under
        the names `episodes`, `waiting` and `returns` of `History.state`.
        """
        if self._log is None:
            return self._begin(0), {}
        if self._log.lost:
            self.episode, self.waiting = self._log.episode, True
            row = self._layout.absent_row
            pixels = np.zeros(self._pixel_count, dtype=np.uint8)
            lost = (row, pixels) if self._has_images else row
            return lost, {"episodes": self.episode, "waiting": True, "returns": 0.0}
        observation, episode_return = self._begin(self._log.episode), 0.0
        self._progress += 1
        for action in each_action(actions_to_replay(self.action_space, self._log.actions)):
            observation, reward, _, _, _ = self.step(action)
            episode_return += float(reward)
            self._progress += 1
            beat(self._index)
        return observation, {"episodes": self.episode, "waiting": self.waiting, "returns": episode_return}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.waiting:
            return self._begin(self.episode + 1), 0.0, False, False, {}
        try:
            observation, reward, terminated, truncated, info = self._step(action)
        except SystemExit as error:
            raise ContractViolation(exit_text(error)) from error
        except ValueError as error:  # raised here, or in a Gymnasium wrapper around the environment
            if str(error) != "not enough values to unpack (expected 5, got 4)":
                raise
            raise ContractViolation(_OLD_STEP) from error
        # the comparison of shapes is needed because NumPy would broadcast an observation of shape (1,)
        if (
            self._check_next
            or reward is None
            or terminated is None
            or truncated is None
            or (self._plain and getattr(observation, "shape", None) != self._shape)
        ):
            self._check_step(observation, reward, terminated, truncated)
        passed_on: dict[str, Any] = {}
        if terminated or truncated:
            self.waiting = True
            if self._info_metrics:
                passed_on[EPISODE_INFO] = episode_values(self._info_metrics, info)
        if not self._plain:
            try:
                observation = self._convert(observation, info)
            except ContractViolation as error:
                raise ContractViolation(f"{error} (after action {action} in episode {self.episode})") from None
            except Exception:
                self._layout.check(observation)
                raise
        return observation, reward, terminated, truncated, passed_on

    def _begin(self, episode: int) -> Any:
        if self.episode >= 0 and self._factory.keeps_state_across_episodes:
            self.env.close()
            self.env = self._factory()
            self._step = self.env.step
        self.episode = episode
        self.waiting = False
        self._check_next = True
        try:
            observation, info = split_reset(self.env.reset(seed=self._seeds(self._index, episode)))
        except SystemExit as error:
            raise ContractViolation(exit_text(error)) from error
        try:
            self._layout.check(observation)
            return self._convert(observation, info)
        except ContractViolation as error:
            raise ContractViolation(f"{error} (after the reset to episode {episode})") from None

    def _check_step(self, observation: Any, reward: Any, *ends: Any) -> None:
        """Check the first step of an episode, and steps that look wrong.

        Checking every step would slow down a fast environment by 1 %.
        """
        self._check_next = self._strict
        number = np.asarray(reward)
        if number.ndim or number.dtype.kind not in "biuf":
            raise ContractViolation(
                f"returned a reward of type {type(reward).__name__} ({reward!r}); the reward must be a number"
            )
        for name, end in zip(("terminated", "truncated"), ends, strict=True):
            flag = np.asarray(end)
            if flag.ndim or flag.dtype.kind not in "biu":
                raise ContractViolation(f"returned {name} of type {type(end).__name__} ({end!r}); it must be a bool")
        if self._plain or self._strict:
            self._layout.check(observation)

    def _convert(self, observation: Any, info: dict[str, Any]) -> Any:
        row = self._layout.row(observation, info, self.waiting)
        return (row, self._layout.pixels(observation)) if self._has_images else row


def actions_to_log(actions: NDArray[Any], converted: Any) -> NDArray[Any]:
    """Return the array that a history keeps of a batch of actions.

    `actions` is the input of `action_converter`, `converted` its output. The history keeps `converted` if that is a
    single array.
    """
    return converted if isinstance(converted, np.ndarray) else actions


def actions_to_replay(space: gym.Space[Any], logged: NDArray[Any]) -> Any:
    """Convert logged actions to actions of `space`, in new arrays: environments may change their actions in place."""
    return action_converter(space)(logged) if isinstance(space, (Dict, Tuple)) else logged.copy()
