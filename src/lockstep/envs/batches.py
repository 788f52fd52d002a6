"""Shared parts of the engines whose environments step as one batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from lockstep.envs.actions import action_converter
from lockstep.envs.engine import EnvironmentFailed, State, Step
from lockstep.envs.env_factory import EnvFactory
from lockstep.envs.infos import batch_values
from lockstep.envs.layout import ContractViolation, ObservationLayout
from lockstep.envs.spaces import Spaces, describe

__all__ = ["BatchReader", "RestartingEngine"]


class BatchReader:
    """Converter of batches of `count` environments to rows and pixels.

    Its methods raise EnvironmentFailed for invalid observations.
    """

    def __init__(self, space: Space[Any], spaces: Spaces, factory: EnvFactory, first: int, count: int) -> None:
        """Create the reader of environments `first` to `first + count - 1`.

        `space` and `spaces` describe the observations of a single environment.
        """
        self._columns = None if factory.columns is None else np.array(factory.columns)
        self._layout = ObservationLayout(space, spaces)
        self._has_images = bool(spaces.images)
        self._rows_unchanged = self._layout.plain and space.dtype == self._layout.dtype
        self._name = f"one of environments {first} to {first + count - 1} ({factory.env_id})"
        self._count = count
        self.pixels = np.zeros((count, 0), dtype=np.uint8)
        """Images `[B, P]` of the observations that were read last."""
        self._info_metrics = factory.info_metrics
        self.infos = np.full((count, len(factory.info_metrics)), np.nan)
        """Numbers `[B, K]` of `env.info_metrics` of the step that was read last."""

    @property
    def needs_infos(self) -> bool:
        """True if `read_step` reads the infos of a step."""
        return bool(self._info_metrics) or not self._rows_unchanged

    def check(self, observations: Any) -> None:
        """Raise ContractViolation if observations `[B, …]` have other shapes or types than their space."""
        self._layout.check(self.select_columns(observations), (self._count,))

    def read_reset(self, observations: Any, infos: Any) -> NDArray[Any]:
        """Return the rows `[B, O]` of the observations and infos of a reset."""
        observations = self.select_columns(observations)
        try:
            self._layout.check(observations, (self._count,))
            return self._rows(observations, infos, None)
        except ContractViolation as error:
            raise EnvironmentFailed(f"{self._name} {error} (after a reset)") from None

    def read_step(self, observations: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any) -> Step:
        """Return the results of a step with the observations as rows `[B, O]`."""
        try:
            if self._info_metrics:
                self.infos = batch_values(self._info_metrics, infos, terminated | truncated)
            if self._rows_unchanged:
                return self.select_columns(observations), rewards, terminated, truncated
            return self._rows(observations, infos, terminated | truncated), rewards, terminated, truncated
        except ContractViolation as error:
            raise EnvironmentFailed(f"{self._name} {error} (after a step)") from None

    def select_columns(self, observations: Any) -> Any:
        """Return the columns of `[B, …]` that the task shows; all of them if it is not a partially observed task."""
        return observations if self._columns is None else observations[:, self._columns]

    def _rows(self, observations: Any, infos: Any, ended: NDArray[np.bool_] | None) -> NDArray[Any]:
        if self._has_images:
            self.pixels = self._layout.batch_pixels(observations)
        return self._layout.rows(observations, infos, ended)


class RestartingEngine:
    """Base class of engines that step a batch. By default their state can't be saved: new episodes begin at every
    checkpoint.
    """

    restarts_episodes = True
    lost: Sequence[int] = ()

    def __init__(
        self,
        envs: Any,
        observation_space: Space[Any],
        action_space: Space[Any],
        factory: EnvFactory,
        first: int,
        count: int,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """Wrap `envs`, environments `first` to `first + count - 1`. Spaces and `info` are those of one environment."""
        self._envs = envs
        self.spaces: Spaces = describe(observation_space, action_space, factory.env_id, info, factory.frames_per_step)
        self._reader = BatchReader(observation_space, self.spaces, factory, first, count)
        self._convert = action_converter(action_space)
        self.absent = np.zeros(count, dtype=np.bool_)

    @property
    def pixels(self) -> NDArray[np.uint8]:
        return self._reader.pixels

    @property
    def infos(self) -> NDArray[np.float64]:
        return self._reader.infos

    def step(self, actions: NDArray[Any]) -> Step:
        return self._reader.read_step(*self._envs.step(self._convert(actions)))

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> NDArray[Any]:
        raise AssertionError("this engine is restarted, not restored")
