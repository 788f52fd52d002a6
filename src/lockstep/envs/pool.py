"""Engine `envpool`: environments in C++ (Weng et al. 2022, arXiv:2206.10558), stepped by threads of the rank."""

from typing import Any

from numpy.typing import NDArray

from lockstep.envs.engine import State, Step
from lockstep.envs.single import Recipe
from lockstep.envs.spaces import Spaces, action_converter, batch_flattener, describe
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
        observation_space, action_space = (
            self._pool.observation_space,
            self._pool.action_space,
        )  # of a single environment
        self.spaces: Spaces = describe(observation_space, action_space, recipe.env_id)
        self._flatten = batch_flattener(observation_space)
        self._convert = action_converter(action_space)

    def _make(self, iteration: int) -> Any:
        return self._recipe.pool([self._seeds(index, iteration) for index in self._indices], self._threads)

    def reset(self) -> NDArray[Any]:
        observations, _ = self._pool.reset()
        rows: NDArray[Any] = self._flatten(observations)
        return rows

    def step(self, actions: NDArray[Any]) -> Step:
        observations, rewards, terminated, truncated, _ = self._pool.step(self._convert(actions))
        return self._flatten(observations), rewards, terminated, truncated

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
