"""Engine `gymnasium-async`: one worker process per environment, through Gymnasium's AsyncVectorEnv.

Unlike in AsyncVectorEnv alone, every wait has a timeout, errors name the environment whose worker died or did not
answer, and no worker outlives the rank, however the rank ends.
"""

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from mmap import mmap
from multiprocessing import TimeoutError as WorkerTimeout
from multiprocessing.connection import wait
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState
from numpy.typing import NDArray

from lockstep.envs.engine import EnvironmentFailed, EnvironmentLost, Step
from lockstep.envs.episodes import EpisodeLog, KeyedEpisodes, actions_to_log
from lockstep.envs.history import History
from lockstep.envs.infos import EPISODE_INFO
from lockstep.envs.interface import Interface, failure_text
from lockstep.envs.layout import ContractViolation
from lockstep.envs.replayed import ReplayedEngine
from lockstep.envs.single import Recipe
from lockstep.processes.heartbeat import beat
from lockstep.processes.parent import die_with_parent
from lockstep.randomness import EnvironmentSeeds

__all__ = ["SubprocessEngine"]


@dataclass(frozen=True)
class _Factory:
    """Factory of one environment in its worker. Gymnasium also calls it once in the parent, to read the spaces."""

    recipe: Recipe
    interface: Interface
    seeds: EnvironmentSeeds
    index: int
    log: EpisodeLog | None
    progress: NDArray[np.int64]
    """Number of replayed steps, `[1]`, in memory that worker and parent share."""
    parent: int
    """Process id of the rank."""

    def __call__(self) -> gym.Env[Any, Any]:
        if os.getpid() != self.parent:
            _become_worker(self.parent)
        return KeyedEpisodes(self.recipe, self.interface, self.seeds, self.index, self.log, self.progress)


def _become_worker(parent: int) -> None:
    # a worker is forked from the rank and inherits its signal handlers, with which it would survive SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the rank ends its workers
    die_with_parent(parent)


class _WorkerError(Exception):
    """An environment raised an exception in its worker."""

    def __init__(self, index: int, message: str, trace: str) -> None:
        super().__init__(message)
        self.index = index
        if trace:
            self.add_note(trace)


class _Workers(AsyncVectorEnv):
    """AsyncVectorEnv with timeouts that a replay extends, and with errors that name the environment."""

    def __init__(self, factories: Sequence[_Factory]) -> None:
        _check_gymnasium()
        # fork: only a child of the rank can be made to die with it, and a fork has imported everything already
        super().__init__(factories, copy=False, context="fork", autoreset_mode=AutoresetMode.DISABLED)
        self._progress = [factory.progress for factory in factories]
        self.timed_out: list[int] = []
        """Indices of the workers that did not answer in time."""

    def _poll_pipe_envs(self, timeout: float | None = None) -> bool:
        """Return True when all workers have answered, False if one has died or needs over `timeout` seconds for a step.

        During a replay, `timeout` applies to each replayed step.
        """
        while True:
            beat()
            steps_before = [int(steps[0]) for steps in self._progress]
            if super()._poll_pipe_envs(timeout):
                return True
            workers = zip(self.parent_pipes, self._progress, steps_before, strict=True)
            self.timed_out = [
                index for index, (pipe, steps, before) in enumerate(workers) if steps[0] == before and not pipe.poll(0)
            ]
            if self.timed_out or not all(process.is_alive() for process in self.processes):
                return False

    def _check_spaces(self) -> None:
        """Do nothing: all workers have the same recipe, and Gymnasium's check waits without a timeout."""

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raise `_WorkerError` with the environment and the worker's traceback; Gymnasium would log them in red."""
        if not all(successes):
            index, kind, value, trace = self.error_queue.get(timeout=10)
            # the trace of a violation that this package detected shows no code of the user
            only_our_code = issubclass(kind, ContractViolation) and "direct cause" not in trace
            raise _WorkerError(index, failure_text(kind, value), "" if only_our_code else trace)

    def kill(self) -> None:
        """Kill all workers, in whatever state they are."""
        for process in self.processes:
            process.kill()  # terminate() would wait forever for a stopped process
        self._state = AsyncState.DEFAULT  # otherwise close() first waits for the pending answers of dead workers
        self.close(terminate=True)


def _check_gymnasium() -> None:
    """Raise ValueError if AsyncVectorEnv lacks a method that `_Workers` overrides, which would then never be called."""
    for name in ("_poll_pipe_envs", "_check_spaces", "_raise_if_errors"):
        if not hasattr(AsyncVectorEnv, name):
            raise ValueError(
                f"env.engine is 'gymnasium-async': gymnasium {gym.__version__} has no AsyncVectorEnv.{name}; install "
                "'gymnasium>=1.4,<2', or use engine 'gymnasium'"
            )


class SubprocessEngine(ReplayedEngine):
    """Engine with one worker process per environment."""

    def __init__(self, recipe: Recipe, seeds: EnvironmentSeeds, first: int, count: int, timeout: float) -> None:
        """Create environments `first` to `first + count - 1`. Each step or reset may take `timeout` seconds."""
        super().__init__(recipe, seeds, first, count)
        self._timeout = timeout
        self._workers: _Workers | None = None

    def _start(self, phase: str, logs: Sequence[EpisodeLog | None]) -> dict[str, Any]:
        self.close()
        progress = np.frombuffer(mmap(-1, 8 * self._count), dtype=np.int64).reshape(self._count, 1)
        factories = [
            _Factory(self._recipe, self._interface, self._seeds, self._first + index, log, progress[index], os.getpid())
            for index, log in enumerate(logs)
        ]
        workers = self._workers = _Workers(factories)
        infos: dict[str, Any]
        observations, infos = self._call(phase, workers.reset_async, workers.reset_wait)
        self._set_observations(observations)
        return infos

    def _set_observations(self, observations: Any) -> None:
        if self.spaces.images:
            self._observations, self.pixels = observations
        else:
            self._observations = observations

    def _call(self, phase: str, send: Callable[[], None], receive: Callable[[float], Any]) -> Any:
        """Send a request and return the answers. If a worker fails, kill all workers and raise EnvironmentFailed."""
        try:
            send()
            return receive(self._timeout)
        except (_WorkerError, WorkerTimeout, EOFError, OSError) as error:
            message = self._failure_message(phase, error)
            self._kill()
            failure = (EnvironmentFailed if isinstance(error, _WorkerError) else EnvironmentLost)(message)
            for trace in getattr(error, "__notes__", ()):
                failure.add_note(trace)
            raise failure from None

    def reset(self) -> NDArray[Any]:
        self._history = History(self._count)
        self._start("reset", [None] * self._count)
        return self._observations

    def step(self, actions: NDArray[Any]) -> Step:
        workers = self._workers
        assert workers is not None
        converted = self._convert(actions)
        self._history.record(actions_to_log(actions, converted))
        observations, rewards, terminated, truncated, infos = self._call(
            "step", lambda: workers.step_async(converted), workers.step_wait
        )
        if self.infos.size:
            ended = (terminated | truncated)[:, np.newaxis]
            self.infos[:] = np.where(ended, infos.get(EPISODE_INFO, np.nan), np.nan)
        self._set_observations(observations)
        self._history.add(rewards, terminated, truncated)
        return self._observations, rewards, terminated, truncated

    def _failure_message(self, phase: str, error: Exception) -> str:
        workers, env_id = self._workers, self._recipe.env_id
        assert workers is not None
        if isinstance(error, _WorkerError):
            return f"environment {self._first + error.index} ({env_id}) {error}"
        if isinstance(error, (EOFError, OSError)):  # a broken pipe: it breaks shortly before the process has ended
            ended = wait([process.sentinel for process in workers.processes], timeout=1)
            for process in workers.processes:
                process.join(1 if process.sentinel in ended else 0)
        dead = [index for index, process in enumerate(workers.processes) if not process.is_alive()]
        if dead:
            names = ", ".join(
                f"{self._first + index} (exit code {workers.processes[index].exitcode})" for index in dead
            )
            return f"the process of environment {names} of {env_id} died during {phase}"
        names = ", ".join(str(self._first + index) for index in workers.timed_out)
        return (
            f"environment {names} of {env_id} did not answer to {phase} within env.timeout = {self._timeout:g} seconds"
        )

    def _replay(self, logs: Sequence[EpisodeLog]) -> dict[str, Any]:
        return self._start("replay", logs)

    def _kill(self) -> None:
        workers, self._workers = self._workers, None
        if workers is None or workers.closed:
            return
        # both arrays are in shared memory that is freed with the workers
        self._observations, self.pixels = self._observations.copy(), self.pixels.copy()
        workers.kill()

    def close(self) -> None:
        self._kill()
