"""Engine `ale`: Atari games in C++, as ale-py batches them, stepped by threads of the rank."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.actions import action_converter
from lockstep.envs.batches import Batches
from lockstep.envs.engine import State, Step
from lockstep.envs.single import Recipe
from lockstep.envs.spaces import Spaces, describe
from lockstep.randomness import EnvironmentSeeds

__all__ = ["Arcade"]


class Arcade:
    """ale-py's AtariVectorEnv. Its games can't be saved, so new ones begin at every iteration that leaves a checkpoint."""

    renews = True

    def __init__(self, recipe: Recipe, seeds: EnvironmentSeeds, first: int, count: int, threads: int) -> None:
        """Environments `first` to `first + count - 1` of the experiment."""
        self._seeds = seeds
        self._indices = range(first, first + count)
        self._games: Any = recipe.games(count, threads)
        seen, acted = self._games.single_observation_space, self._games.single_action_space
        self.spaces: Spaces = describe(seen, acted, recipe.env_id, frames_per_step=recipe.frames_per_step)
        self._batches = Batches(seen, self.spaces, recipe, first, count)
        self._convert = action_converter(acted)

    @property
    def pixels(self) -> NDArray[np.uint8]:
        return self._batches.pixels

    def reset(self) -> NDArray[Any]:
        return self.renew(0)

    def step(self, actions: NDArray[Any]) -> Step:
        return self._batches.step(*self._games.step(self._convert(actions)))

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> NDArray[Any]:
        raise AssertionError("this engine is renewed, not restored")

    def renew(self, iteration: int) -> NDArray[Any]:
        # a reset with a seed leaves nothing of what was before
        return self._batches.first(
            *self._games.reset(seed=np.array([self._seeds(i, iteration) for i in self._indices]))
        )

    def close(self) -> None:
        self._games = None  # which ends its threads
