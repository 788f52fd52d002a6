"""Engine `gymnasium-async`: one worker process per environment.

Every wait has a timeout, errors name the environment whose worker died or did not answer, and no worker outlives the
rank, however the rank ends.
"""

import select
import time
from collections.abc import Iterator, Sequence
from functools import partial
from mmap import mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.actions import each_action
from lockstep.envs.engine import EnvironmentFailed, EnvironmentLost, Step
from lockstep.envs.env_factory import EnvFactory
from lockstep.envs.episodes import EpisodeLog, SeededEpisodes, actions_to_log
from lockstep.envs.faults import FaultLimit
from lockstep.envs.history import History
from lockstep.envs.infos import EPISODE_INFO
from lockstep.envs.replayed import ReplayedEngine
from lockstep.envs.worker import Failure, Results, Worker
from lockstep.processes.heartbeat import STOPPED_AFTER, beat
from lockstep.randomness import EnvironmentSeeds

__all__ = ["SubprocessEngine"]

_ALIGNMENT = 64
_POLL = 1.0
"""Longest seconds between two looks at the progress of replays."""


class _Memory:
    """Results of all environments, in memory that the rank and its workers share."""

    def __init__(self, count: int, observation_size: int, dtype: np.dtype[Any], pixel_count: int) -> None:
        shapes = [
            ((count, observation_size), dtype),
            ((count, pixel_count), np.dtype(np.uint8)),
            ((count, 1), np.dtype(np.float64)),
            ((count, 2), np.dtype(np.bool_)),
            ((count, 1), np.dtype(np.int64)),
        ]
        sizes = [-(-int(np.prod(shape)) * kind.itemsize // _ALIGNMENT) * _ALIGNMENT for shape, kind in shapes]
        memory, starts = mmap(-1, sum(sizes)), np.cumsum([0, *sizes]).tolist()
        self.observations, self.pixels, self.rewards, self.ended, self.progress = (
            np.ndarray(shape, kind, memory, start) for (shape, kind), start in zip(shapes, starts, strict=False)
        )

    def results(self, index: int) -> Results:
        """Return the part of one environment."""
        arrays = self.observations, self.pixels, self.rewards, self.ended, self.progress
        return Results(*(array[index] for array in arrays))


class _Fault(NamedTuple):
    """Failure of one environment."""

    message: str
    trace: str
    """Traceback of the environment's code; empty if the failure did not occur in it."""
    lost: bool
    """True if the process has ended or does not answer: creating the environments again may succeed."""


class SubprocessEngine(ReplayedEngine):
    """Engine with one worker process per environment."""

    def __init__(
        self,
        factory: EnvFactory,
        seeds: EnvironmentSeeds,
        first: int,
        count: int,
        timeout: float,
        limit: FaultLimit | None = None,
    ) -> None:
        """Create environments `first` to `first + count - 1`. Each step or reset may take `timeout` seconds.

        With a `limit`, environments that fail are replaced, until it is exceeded; without, the first failure is an error.
        """
        super().__init__(factory, seeds, first, count)
        self.lost: list[int] = []
        self._timeout = timeout
        self._limit = limit
        self._memory = _Memory(
            count, self.spaces.observation_size, self._interface.layout.dtype, self.spaces.pixel_count
        )
        self._observations, self.pixels = self._memory.observations, self._memory.pixels
        self._workers: dict[int, Worker] = {}
        """Workers by environment, without those that are to be replaced in the next step."""

    def _start(self, index: int, log: EpisodeLog | None) -> None:
        """Start the worker of an environment, which replays the log."""
        results, strict = self._memory.results(index), self._limit is not None
        arguments = self._factory, self._interface, self._seeds, self._first + index, log, results.progress, strict
        self._workers[index] = Worker(partial(SeededEpisodes, *arguments), results, strict)

    def _collect(self, phase: str) -> dict[int, dict[str, Any]]:
        """Wait for all workers and return their infos, without those of environments that failed, which are dropped.

        Raises EnvironmentFailed for the first that fails, unless there is a limit which is not exceeded.
        """
        infos = {}
        for index, answer in self._answers(phase):
            if isinstance(answer, _Fault):
                self._drop(index, answer)
            else:
                infos[index] = answer
        return infos

    def _answers(self, phase: str) -> Iterator[tuple[int, dict[str, Any] | _Fault]]:
        """Yield the answers of all workers as they come. The timeout applies to each step of a replay."""
        poll, waiting = select.poll(), {worker.pipe.fileno(): index for index, worker in self._workers.items()}
        for pipe in waiting:
            poll.register(pipe, select.POLLIN)
        now = time.monotonic()
        moved, steps = dict.fromkeys(waiting, now), self._memory.progress[:, 0].copy()
        while waiting:
            left = min(moved.values()) + self._timeout - time.monotonic()
            ready = [pipe for pipe, _ in poll.poll(1000 * min(max(left, 0.0), _POLL))]
            answers = {pipe: self._receive(waiting[pipe], phase) for pipe in ready}
            before, now = now, time.monotonic()
            if now - before > _POLL + STOPPED_AFTER:
                moved = dict.fromkeys(waiting, now)  # the workers were stopped as well
            for pipe in () if ready else waiting:
                index = waiting[pipe]
                if (position := self._memory.progress[index, 0]) != steps[index]:
                    steps[index], moved[pipe] = position, now
                    beat()
                elif now - moved[pipe] > self._timeout:
                    answers[pipe] = _Fault(self._late(index, phase), "", lost=True)
            for pipe, answer in answers.items():
                poll.unregister(pipe)
                del moved[pipe]
                yield waiting.pop(pipe), answer

    def _late(self, index: int, phase: str) -> str:
        name = f"environment {self._first + index} of {self._factory.env_id}"
        setting = "env.timeout" if self._limit is None else "the smaller of env.timeout and runtime.timeout / 2"
        return f"{name} did not answer to {phase} within {setting} = {self._timeout:g} seconds"

    def _receive(self, index: int, phase: str) -> dict[str, Any] | _Fault:
        worker, number, env_id = self._workers[index], self._first + index, self._factory.env_id
        try:
            answer = worker.receive()
        except (EOFError, OSError):  # a pipe breaks shortly before the process has ended
            code = worker.wait_for_exit_code(1.0)
            text = f"the process of environment {number} (exit code {code}) of {env_id} died during {phase}"
            return _Fault(text, "", lost=True)
        if isinstance(answer, Failure):
            return _Fault(f"environment {number} ({env_id}) {answer.text}", answer.trace, lost=False)
        return answer

    def _drop(self, index: int, fault: _Fault) -> None:
        """End an environment that has failed, and leave what a reset row needs. Raises EnvironmentFailed if it is not to be replaced."""
        if self._limit is None:
            self.close()
            failure = (EnvironmentLost if fault.lost else EnvironmentFailed)(fault.message)
            if fault.trace:
                failure.add_note(fault.trace)
            raise failure
        self._workers.pop(index).kill()
        try:
            self._limit.add(fault.message, fault.trace)
        except EnvironmentFailed:
            self.close()
            raise
        self.lost.append(index)
        self._observations[index], self.pixels[index] = self._interface.layout.absent_row, 0
        self._memory.rewards[index], self._memory.ended[index] = 0.0, (True, False)

    def reset(self) -> NDArray[Any]:
        self._history = History(self._count)
        self._restart([None] * self._count, "reset")
        self._history.drop(self.lost)
        return self._observations

    def _restart(self, logs: Sequence[EpisodeLog | None], phase: str) -> dict[int, dict[str, Any]]:
        self.close()
        self.lost = []
        for index, log in enumerate(logs):
            beat(self._first + index)
            self._start(index, log)
        return self._collect(phase)

    def step(self, actions: NDArray[Any]) -> Step:
        beat()
        converted = self._convert(actions)
        logged = actions_to_log(actions, converted)
        self._history.record(logged)
        self.lost = []
        for index, action in enumerate(each_action(converted)):
            if index in self._workers:
                self._workers[index].send(action)
            else:  # it failed in the step before, so this is its reset
                self._start(index, EpisodeLog(int(self._history.episodes[index]) + 1, logged[:0]))
        infos = self._collect("step")
        if self.infos.size:
            for index in range(self._count):
                self.infos[index] = infos.get(index, {}).get(EPISODE_INFO, np.nan)
        rewards, (terminated, truncated) = self._memory.rewards[:, 0], self._memory.ended.T
        self._history.add(rewards, terminated, truncated)
        self._history.drop(self.lost)
        return self._observations, rewards, terminated, truncated

    def _replay(self, logs: Sequence[EpisodeLog]) -> dict[str, Any]:
        infos = self._restart(logs, "replay")
        of_lost: dict[str, Any] = {"episodes": 0, "waiting": True, "returns": 0.0}
        return {name: np.array([infos.get(index, of_lost)[name] for index in range(self._count)]) for name in of_lost}

    def close(self) -> None:
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.kill()
