"""Engine `gymnasium`: environments stepped one after the other in the rank's own process."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.actions import each_action
from lockstep.envs.engine import EnvironmentFailed, Step
from lockstep.envs.env_factory import EnvFactory
from lockstep.envs.episodes import EpisodeLog, SeededEpisodes, actions_to_log
from lockstep.envs.history import History
from lockstep.envs.infos import EPISODE_INFO
from lockstep.envs.interface import failure_text
from lockstep.envs.layout import ContractViolation
from lockstep.envs.replayed import ReplayedEngine
from lockstep.processes.heartbeat import ENVIRONMENT, beat, own_cells
from lockstep.randomness import EnvironmentSeeds

__all__ = ["InProcessEngine"]


class InProcessEngine(ReplayedEngine):
    """Engine that steps `SeededEpisodes` in a loop."""

    def __init__(self, factory: EnvFactory, seeds: EnvironmentSeeds, first: int, count: int) -> None:
        """Create environments `first` to `first + count - 1` of the experiment."""
        super().__init__(factory, seeds, first, count)
        self._envs = self._make([None] * count)
        self._rewards = np.zeros(count)
        self._terminated = np.zeros(count, dtype=np.bool_)
        self._truncated = np.zeros(count, dtype=np.bool_)
        self._infos: list[dict[str, Any]] = [{}] * count

    def _make(self, logs: Sequence[EpisodeLog | None]) -> list[SeededEpisodes]:
        envs = []
        for index, log in enumerate(logs):
            beat(self._first + index)
            envs.append(SeededEpisodes(self._factory, self._interface, self._seeds, self._first + index, log))
        return envs

    def reset(self) -> NDArray[Any]:
        self._history = History(len(self._envs))
        self._reset()
        return self._observations

    def _reset(self) -> list[dict[str, Any]]:
        infos = []
        for index, env in enumerate(self._envs):
            try:
                beat(self._first + index)
                observation, info = env.reset()
                infos.append(info)
                if self.spaces.images:
                    self._observations[index], self.pixels[index] = observation
                else:
                    self._observations[index] = observation
            except Exception as error:
                raise self._failure(index, error) from error
        return infos

    def step(self, actions: NDArray[Any]) -> Step:
        converted = self._convert(actions)
        self._history.record(actions_to_log(actions, converted))
        observations, rewards = self._observations, self._rewards
        terminated, truncated = self._terminated, self._truncated
        infos, cells, first = self._infos, own_cells(), self._first + 1
        index, pairs = 0, zip(self._envs, each_action(converted), strict=True)
        try:
            if self.spaces.images:
                pixels = self.pixels
                for index, (env, action) in enumerate(pairs):
                    cells[ENVIRONMENT] = first + index
                    observation, rewards[index], terminated[index], truncated[index], infos[index] = env.step(action)
                    observations[index], pixels[index] = observation
            else:
                for index, (env, action) in enumerate(pairs):
                    cells[ENVIRONMENT] = first + index
                    result = env.step(action)
                    observations[index], rewards[index], terminated[index], truncated[index], infos[index] = result
        except Exception as error:
            # a violation that this package detected itself has no line of the environment's code to show
            shown = error.__cause__ if isinstance(error, ContractViolation) else error
            raise self._failure(index, error) from shown
        if self.infos.size:
            for index, info in enumerate(infos):
                self.infos[index] = info.get(EPISODE_INFO, np.nan)
        self._history.add(rewards, terminated, truncated)
        return observations, rewards, terminated, truncated

    def _failure(self, index: int, error: BaseException) -> EnvironmentFailed:
        return EnvironmentFailed(
            f"environment {self._first + index} ({self._factory.env_id}) {failure_text(type(error), error)}"
        )

    def _replay(self, logs: Sequence[EpisodeLog]) -> dict[str, Any]:
        self.close()
        self._envs = self._make(logs)
        infos = self._reset()
        return {name: np.array([info[name] for info in infos]) for name in infos[0]}

    def close(self) -> None:
        for index, env in enumerate(self._envs):
            try:
                beat(self._first + index)
                env.close()
            except SystemExit as error:
                raise self._failure(index, error) from error
