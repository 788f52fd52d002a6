"""Engine `envpool`: environments in C++ (Weng et al. 2022, arXiv:2206.10558), stepped by threads of the rank."""

from typing import Any

from numpy.typing import NDArray

from lockstep.envs.batches import Renewed
from lockstep.envs.single import Recipe
from lockstep.randomness import EnvironmentSeeds

__all__ = ["Pool"]


class Pool(Renewed):
    """An EnvPool, which is rebuilt to be renewed."""

    def __init__(self, recipe: Recipe, seeds: EnvironmentSeeds, first: int, count: int, threads: int) -> None:
        """Environments `first` to `first + count - 1` of the experiment."""
        self._recipe = recipe
        self._seeds = seeds
        self._threads = threads
        self._indices = range(first, first + count)
        pool = self._make(0)
        # its spaces are those of a single environment
        super().__init__(pool, recipe.seen(pool.observation_space), pool.action_space, recipe, first, count)

    def _make(self, iteration: int) -> Any:
        return self._recipe.pool([self._seeds(index, iteration) for index in self._indices], self._threads)

    def reset(self) -> NDArray[Any]:
        return self._batches.first(*self._envs.reset())

    def renew(self, iteration: int) -> NDArray[Any]:
        self._envs.close()
        self._envs = self._make(iteration)
        return self.reset()

    def close(self) -> None:
        self._envs.close()
