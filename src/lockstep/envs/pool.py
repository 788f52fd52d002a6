"""Engine `envpool`: environments in C++ (Weng et al. 2022, arXiv:2206.10558), stepped by threads of the rank."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.actions import action_converter
from lockstep.envs.batches import Batches
from lockstep.envs.engine import State, Step
from lockstep.envs.single import Recipe
from lockstep.envs.spaces import Spaces, describe
from lockstep.randomness import EnvironmentSeeds

__all__ = ["Pool"]


class Pool:
    """An EnvPool. Its environments can't be saved, so they are rebuilt at every iteration that leaves a checkpoint."""

    renews = True

    def __init__(self, recipe: Recipe, seeds: EnvironmentSeeds, first: int, count: int, threads: int) -> None:
        """Environments `first` to `first + count - 1` of the experiment."""
        self._recipe = recipe
        self._seeds = seeds
        self._threads = threads
        self._indices = range(first, first + count)
        self._pool = self._make(0)
        seen, acted = recipe.seen(self._pool.observation_space), self._pool.action_space  # of a single environment
        self.spaces: Spaces = describe(seen, acted, recipe.env_id, frames_per_step=recipe.frames_per_step)
        self._batches = Batches(seen, self.spaces, recipe, first, count)
        self._convert = action_converter(acted)

    @property
    def pixels(self) -> NDArray[np.uint8]:
        return self._batches.pixels

    def _make(self, iteration: int) -> Any:
        return self._recipe.pool([self._seeds(index, iteration) for index in self._indices], self._threads)

    def reset(self) -> NDArray[Any]:
        return self._batches.first(*self._pool.reset())

    def step(self, actions: NDArray[Any]) -> Step:
        return self._batches.step(*self._pool.step(self._convert(actions)))

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> NDArray[Any]:
        raise AssertionError("this engine is renewed, not restored")

    def renew(self, iteration: int) -> NDArray[Any]:
        self._pool.close()
        self._pool = self._make(iteration)
        return self.reset()

    def close(self) -> None:
        self._pool.close()
