"""What environments that step themselves as one batch give, as the rows and pixels of an engine."""

from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from lockstep.envs.actions import action_converter
from lockstep.envs.engine import EnvironmentFailed, State, Step
from lockstep.envs.layout import ContractViolation, ObservationLayout
from lockstep.envs.single import Recipe
from lockstep.envs.spaces import Spaces, describe

__all__ = ["Batches", "Renewed"]


class Batches:
    """Reads the batches of `count` environments."""

    def __init__(self, space: Space[Any], spaces: Spaces, recipe: Recipe, first: int, count: int) -> None:
        """`space` is a single environment's, and `spaces` what `describe` made of it; `first` numbers the first environment."""
        self._columns = None if recipe.columns is None else np.array(recipe.columns)
        self._layout = ObservationLayout(space, spaces)
        self._images = bool(spaces.images)
        self._plain = self._layout.plain and space.dtype == self._layout.dtype
        self._name = f"one of environments {first} to {first + count - 1} ({recipe.env_id})"
        self._count = count
        self.pixels = np.zeros((count, 0), dtype=np.uint8)
        """`[B, P]` of the observations read last."""

    def first(self, observations: Any, infos: Any) -> NDArray[Any]:
        """`[B, O]` of what a reset gave."""
        observations = self.kept(observations)
        try:
            self._layout.check(observations, (self._count,))
            return self._rows(observations, infos, None)
        except ContractViolation as error:
            raise EnvironmentFailed(f"{self._name} {error} (after a reset)") from None

    def step(self, observations: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any) -> Step:
        """Of what a step gave."""
        if self._plain:
            return self.kept(observations), rewards, terminated, truncated
        try:
            return self._rows(observations, infos, terminated | truncated), rewards, terminated, truncated
        except ContractViolation as error:
            raise EnvironmentFailed(f"{self._name} {error} (after a step)") from None

    def kept(self, observations: Any) -> Any:
        """What a task keeps of `[B, …]`."""
        return observations if self._columns is None else observations[:, self._columns]

    def _rows(self, observations: Any, infos: Any, over: NDArray[np.bool_] | None) -> NDArray[Any]:
        if self._images:
            self.pixels = self._layout.batch_pixels(observations)
        return self._layout.rows(observations, infos, over)


class Renewed:
    """What engines share whose environments, one batch, can't be saved, so that new episodes begin at every iteration that leaves a checkpoint."""

    renews = True

    def __init__(self, envs: Any, seen: Space[Any], acted: Space[Any], recipe: Recipe, first: int, count: int) -> None:
        """`envs` are environments `first` to `first + count - 1` of the experiment; the spaces are those of one of them."""
        self._envs = envs
        self.spaces: Spaces = describe(seen, acted, recipe.env_id, frames_per_step=recipe.frames_per_step)
        self._batches = Batches(seen, self.spaces, recipe, first, count)
        self._convert = action_converter(acted)

    @property
    def pixels(self) -> NDArray[np.uint8]:
        return self._batches.pixels

    def step(self, actions: NDArray[Any]) -> Step:
        return self._batches.step(*self._envs.step(self._convert(actions)))

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> NDArray[Any]:
        raise AssertionError("this engine is renewed, not restored")
