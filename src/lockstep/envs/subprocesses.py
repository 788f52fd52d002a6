"""Engine `gymnasium-async`: one process per environment, through Gymnasium's own AsyncVectorEnv.

What is added is that nothing hangs and nothing is left behind. Every wait is bounded, a dead or silent worker is named, and
workers die with the rank, however it dies.
"""

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from mmap import mmap
from multiprocessing import TimeoutError as Late
from multiprocessing.connection import wait
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState
from numpy.typing import NDArray

from lockstep.envs.actions import action_converter
from lockstep.envs.engine import EnvironmentFailed, State, Step
from lockstep.envs.episodes import KeyedEpisodes, Past, keepable
from lockstep.envs.history import History, check_replay, check_state, pasts, seen_now
from lockstep.envs.interface import Interface, told
from lockstep.envs.layout import ContractViolation
from lockstep.envs.single import Recipe
from lockstep.envs.spaces import Spaces
from lockstep.processes.parent import die_with_parent
from lockstep.randomness import EnvironmentSeeds

__all__ = ["Subprocesses"]


@dataclass(frozen=True)
class _Factory:
    """Makes one environment, in its worker. Gymnasium also calls it once in the parent, to look at the spaces."""

    recipe: Recipe
    interface: Interface
    seeds: EnvironmentSeeds
    index: int
    past: Past | None
    progress: NDArray[np.int64]
    """`[1]`, in memory that worker and parent share."""
    parent: int

    def __call__(self) -> gym.Env[Any, Any]:
        if os.getpid() != self.parent:
            _become_worker(self.parent)
        return KeyedEpisodes(self.recipe, self.interface, self.seeds, self.index, self.past, self.progress)


def _become_worker(parent: int) -> None:
    # forked from a rank, which has handlers of its own: with them a worker would survive its termination
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the rank ends its workers
    die_with_parent(parent)


class _Failed(Exception):
    """An environment raised in its worker."""

    def __init__(self, index: int, message: str, trace: str) -> None:
        super().__init__(message)
        self.index = index
        if trace:
            self.add_note(trace)


class _Workers(AsyncVectorEnv[Any, Any]):
    def __init__(self, factories: Sequence[_Factory]) -> None:
        # fork: a worker must be the rank's own child to die with it, and needs nothing that the rank has not imported
        super().__init__(factories, copy=False, context="fork", autoreset_mode=AutoresetMode.DISABLED)
        self._progress = [factory.progress for factory in factories]
        self.late: list[int] = []
        """Workers that did not answer in time."""

    def _poll_pipe_envs(self, timeout: float | None = None) -> bool:
        """Wait until all workers have answered; False: one of them needs more than `timeout` seconds for a step, replayed or not."""
        while True:
            before = [int(steps[0]) for steps in self._progress]
            if super()._poll_pipe_envs(timeout):
                return True
            waited = zip(self.parent_pipes, self._progress, before, strict=True)
            self.late = [
                index for index, (pipe, steps, then) in enumerate(waited) if steps[0] == then and not pipe.poll(0)
            ]
            if self.late or not all(process.is_alive() for process in self.processes):
                return False

    def _check_spaces(self) -> None:
        """Left out: all workers have one recipe, and this is the only wait in Gymnasium that can't be bounded."""

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Instead of warnings in red: the error with its environment and the worker's traceback."""
        if not all(successes):
            index, kind, value, trace = self.error_queue.get(timeout=10)
            # of a breach of the API that this package found, the trace shows nothing of the user's code
            own = issubclass(kind, ContractViolation) and "direct cause" not in trace
            raise _Failed(index, told(kind, value), "" if own else trace)

    def end(self) -> None:
        """Ends all workers, whatever they do."""
        for process in self.processes:
            process.kill()  # terminate() would wait for ever for a stopped process
        self._state = AsyncState.DEFAULT  # else close() first asks the dead for the answer that they owe
        self.close(terminate=True)


class Subprocesses:
    """One worker process per environment."""

    renews = False

    def __init__(self, recipe: Recipe, seeds: EnvironmentSeeds, first: int, count: int, timeout: float) -> None:
        """Environments `first` to `first + count - 1` of the experiment; a step, replayed step or reset may take `timeout` seconds."""
        self._recipe = recipe
        self._seeds = seeds
        self._first = first
        self._count = count
        self._timeout = timeout
        self._workers: _Workers | None = None
        self._interface = Interface.of(recipe)
        self.spaces: Spaces = self._interface.spaces
        self._convert = action_converter(self._interface.action_space)
        self._observations = np.zeros((count, self.spaces.observation_size), dtype=self._interface.layout.dtype)
        self.pixels = np.zeros((count, self.spaces.pixel_count), dtype=np.uint8)
        self._history = History(count)

    def _start(self, phase: str, past: Sequence[Past | None]) -> dict[str, Any]:
        """Start the workers, reset their environments and return the infos."""
        self.close()
        progress = np.frombuffer(mmap(-1, 8 * self._count), dtype=np.int64).reshape(self._count, 1)
        factories = [
            _Factory(self._recipe, self._interface, self._seeds, self._first + index, at, progress[index], os.getpid())
            for index, at in enumerate(past)
        ]
        workers = self._workers = _Workers(factories)
        infos: dict[str, Any]
        seen, infos = self._answer(phase, workers.reset_async, workers.reset_wait)
        self._see(seen)
        return infos

    def _see(self, seen: Any) -> None:
        if self.spaces.images:
            self._observations, self.pixels = seen
        else:
            self._observations = seen

    def _answer(self, phase: str, ask: Callable[[], None], hear: Callable[[float], Any]) -> Any:
        try:
            ask()
            return hear(self._timeout)
        except (_Failed, Late, EOFError, OSError) as error:
            problem = self._problem(phase, error)
            self._kill()
            failure = EnvironmentFailed(problem)
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
        taken = self._convert(actions)
        self._history.record(keepable(actions, taken))
        seen, rewards, terminated, truncated, _ = self._answer(
            "step", lambda: workers.step_async(taken), workers.step_wait
        )
        self._see(seen)
        self._history.add(rewards, terminated, truncated)
        return self._observations, rewards, terminated, truncated

    def _problem(self, phase: str, error: Exception) -> str:
        """One line that says which environments failed, and how."""
        workers, env_id = self._workers, self._recipe.env_id
        assert workers is not None
        if isinstance(error, _Failed):
            return f"environment {self._first + error.index} ({env_id}) {error}"
        if isinstance(error, (EOFError, OSError)):  # a broken pipe: it breaks a moment before the process is gone
            gone = wait([process.sentinel for process in workers.processes], timeout=1)
            for process in workers.processes:
                process.join(1 if process.sentinel in gone else 0)
        dead = [index for index, process in enumerate(workers.processes) if not process.is_alive()]
        if dead:
            names = ", ".join(
                f"{self._first + index} (exit code {workers.processes[index].exitcode})" for index in dead
            )
            return f"the process of environment {names} of {env_id} died during {phase}"
        names = ", ".join(str(self._first + index) for index in workers.late)
        return (
            f"environment {names} of {env_id} gave no answer to {phase} within env.timeout = {self._timeout:g} seconds"
        )

    def state(self) -> State:
        self._history.warn_if_long(self._first, self._recipe.env_id)
        return self._history.state(self._observations, self.pixels)

    def restore(self, state: State) -> NDArray[Any]:
        check_state(state, self._count, self.spaces.pixel_count, self._recipe.env_id)
        replayed = self._start("replay", pasts(state))
        check_replay(state, replayed | seen_now(self._observations, self.pixels), self._first, self._recipe.env_id)
        self._history = History.of(state, replayed["returns"])
        return self._observations

    def renew(self, iteration: int) -> NDArray[Any]:
        raise AssertionError("this engine is restored, not renewed")

    def _kill(self) -> None:
        workers, self._workers = self._workers, None
        if workers is None or workers.closed:
            return
        # they lie in memory that goes with the workers
        self._observations, self.pixels = self._observations.copy(), self.pixels.copy()
        workers.end()

    def close(self) -> None:
        self._kill()
