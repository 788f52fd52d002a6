"""Shared parts of the engines that restore their environments by replay."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.actions import action_converter
from lockstep.envs.engine import State
from lockstep.envs.env_factory import EnvFactory
from lockstep.envs.episodes import EpisodeLog
from lockstep.envs.history import History, check_state, current_observations, episode_logs, restore_history
from lockstep.envs.interface import Interface
from lockstep.envs.spaces import Spaces
from lockstep.randomness import EnvironmentSeeds

__all__ = ["ReplayedEngine"]


class ReplayedEngine:
    """Base class of engines that step `SeededEpisodes`."""

    restarts_episodes = False
    lost: Sequence[int] = ()

    def __init__(self, factory: EnvFactory, seeds: EnvironmentSeeds, first: int, count: int) -> None:
        """Describe environments `first` to `first + count - 1` of the experiment, without creating them."""
        self._factory = factory
        self._seeds = seeds
        self._first = first
        self._count = count
        self._interface = Interface.from_factory(factory)
        self.spaces: Spaces = self._interface.spaces
        self._convert = action_converter(self._interface.action_space)
        self._observations = np.zeros((count, self.spaces.observation_size), dtype=self._interface.layout.dtype)
        self.pixels = np.zeros((count, self.spaces.pixel_count), dtype=np.uint8)
        self.infos = np.full((count, len(factory.info_metrics)), np.nan)
        self.absent = np.zeros(count, dtype=np.bool_)
        self._history = History(count)

    def _replay(self, logs: Sequence[EpisodeLog]) -> dict[str, Any]:
        """Create new environments, replay the logs in them, and return the infos by name."""
        raise NotImplementedError

    def state(self) -> State:
        self._history.warn_if_long(self._first, self._factory.env_id)
        return self._history.state(self._observations, self.pixels)

    def restore(self, state: State) -> NDArray[Any]:
        check_state(state, self._count, self.spaces.pixel_count, self._factory.env_id)
        replayed = self._replay(episode_logs(state)) | current_observations(self._observations, self.pixels)
        lost = list(self.lost)  # environments that failed during the replay have nothing to compare
        for name in replayed.keys() & state.keys():
            replayed[name][lost] = state[name][lost]
        self._history = restore_history(state, replayed, self._first, self._factory.env_id)
        self._history.drop(lost)
        return self._observations

    def restart_episodes(self, iteration: int) -> NDArray[Any]:
        raise AssertionError("this engine is restored, not restarted")
