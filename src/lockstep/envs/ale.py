"""Engine `ale`: Atari games in C++, in the vector environment of ale-py, stepped by threads of the rank."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.batches import RestartingEngine
from lockstep.envs.env_factory import EnvFactory
from lockstep.randomness import EnvironmentSeeds

__all__ = ["AleEngine"]


class AleEngine(RestartingEngine):
    """Engine around ale-py's AtariVectorEnv."""

    def __init__(self, factory: EnvFactory, seeds: EnvironmentSeeds, first: int, count: int, threads: int) -> None:
        """Create environments `first` to `first + count - 1` of the experiment."""
        self._seeds = seeds
        self._indices = range(first, first + count)
        envs = factory.make_atari_vector(count, threads)
        super().__init__(envs, envs.single_observation_space, envs.single_action_space, factory, first, count)

    def reset(self) -> NDArray[Any]:
        return self.restart_episodes(0)

    def restart_episodes(self, iteration: int) -> NDArray[Any]:
        # a reset with seeds discards all earlier state of the games
        seeds = np.array([self._seeds(index, iteration) for index in self._indices])
        return self._reader.read_reset(*self._envs.reset(seed=seeds))

    def close(self) -> None:
        self._envs = None  # the destructor of the vector environment ends its threads
