"""Engine `envpool`: environments in C++ (Weng et al. 2022, arXiv:2206.10558), stepped by threads of the rank."""

from typing import Any

from numpy.typing import NDArray

from lockstep.envs.batches import RestartingEngine
from lockstep.envs.env_factory import EnvFactory
from lockstep.randomness import EnvironmentSeeds

__all__ = ["EnvpoolEngine"]


class EnvpoolEngine(RestartingEngine):
    """Engine around an EnvPool. `restart_episodes` creates a new EnvPool."""

    def __init__(self, factory: EnvFactory, seeds: EnvironmentSeeds, first: int, count: int, threads: int) -> None:
        """Create environments `first` to `first + count - 1` of the experiment."""
        self._factory = factory
        self._seeds = seeds
        self._threads = threads
        self._indices = range(first, first + count)
        pool = self._make(0)
        # the spaces of an EnvPool are those of a single environment
        observation_space = factory.select_columns(pool.observation_space)
        super().__init__(pool, observation_space, pool.action_space, factory, first, count)

    def _make(self, iteration: int) -> Any:
        return self._factory.make_envpool([self._seeds(index, iteration) for index in self._indices], self._threads)

    def reset(self) -> NDArray[Any]:
        return self._reader.read_reset(*self._envs.reset())

    def restart_episodes(self, iteration: int) -> NDArray[Any]:
        self._envs.close()
        self._envs = self._make(iteration)
        return self.reset()

    def close(self) -> None:
        self._envs.close()
