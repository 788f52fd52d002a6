"""Engine `ale`: Atari games in C++, as ale-py batches them, stepped by threads of the rank."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.batches import Renewed
from lockstep.envs.single import Recipe
from lockstep.randomness import EnvironmentSeeds

__all__ = ["Arcade"]


class Arcade(Renewed):
    """ale-py's AtariVectorEnv."""

    def __init__(self, recipe: Recipe, seeds: EnvironmentSeeds, first: int, count: int, threads: int) -> None:
        """Environments `first` to `first + count - 1` of the experiment."""
        self._seeds = seeds
        self._indices = range(first, first + count)
        games = recipe.games(count, threads)
        super().__init__(games, games.single_observation_space, games.single_action_space, recipe, first, count)

    def reset(self) -> NDArray[Any]:
        return self.renew(0)

    def renew(self, iteration: int) -> NDArray[Any]:
        # a reset with a seed leaves nothing of what was before
        return self._batches.first(*self._envs.reset(seed=np.array([self._seeds(i, iteration) for i in self._indices])))

    def close(self) -> None:
        self._envs = None  # which ends its threads
