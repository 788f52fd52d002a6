"""One environment in a process of its own, and its answers."""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.episodes import SeededEpisodes
from lockstep.envs.interface import failure_text
from lockstep.envs.layout import ContractViolation
from lockstep.processes.parent import die_with_parent

__all__ = ["Failure", "Results", "Worker"]

# fork: only a child of the rank can be made to die with it, and a fork has imported everything already
_fork = multiprocessing.get_context("fork")


class Failure(NamedTuple):
    """Answer of a worker whose environment has failed."""

    text: str
    """Description in a phrase that follows the environment's name."""
    trace: str
    """Traceback of the environment's code; empty if the failure did not occur in it."""


@dataclass(frozen=True)
class Results:
    """Results of one environment, in memory that the worker and the rank share."""

    observation: NDArray[Any]
    """Row `[O]` of the current observation."""
    pixels: NDArray[np.uint8]
    """Images `[P]` of the current observation."""
    reward: NDArray[np.float64]
    """Reward of the last step, `[1]`."""
    ended: NDArray[np.bool_]
    """Flags of the last step, `[2]`: terminated, truncated."""
    progress: NDArray[np.int64]
    """Number of replayed steps, `[1]`."""

    def write(self, observation: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        """Write the results of a step."""
        if self.pixels.size:
            self.observation[:], self.pixels[:] = observation
        else:
            self.observation[:] = observation
        self.reward[0], self.ended[0], self.ended[1] = reward, terminated, truncated

    def check_finite(self) -> None:
        """Raise ContractViolation for values that are not finite. The last observation of a terminated episode is not used."""
        if not np.isfinite(self.reward[0]):
            raise ContractViolation(f"returned the reward {self.reward[0]}")
        if not self.ended[0] and not np.isfinite(self.observation).all():
            value = self.observation[~np.isfinite(self.observation)][0]
            raise ContractViolation(f"returned an observation with the value {value}")


class Worker:
    """Process that creates an environment and steps it. Its first answer is that of a reset."""

    def __init__(self, make: Callable[[], SeededEpisodes], results: Results, strict: bool) -> None:
        """Start the process, which calls `make`. With `strict`, values that are not finite are a failure."""
        self.pipe, far_end = _fork.Pipe()
        self._process = _fork.Process(
            target=_serve, args=(make, far_end, self.pipe, results, strict, os.getpid()), daemon=True
        )
        self._process.start()
        far_end.close()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, action: Any) -> None:
        """Ask for a step. If the process has ended, the next `receive` raises the error."""
        with suppress(OSError):
            self.pipe.send(action)

    def receive(self) -> dict[str, Any] | Failure:
        """Return the `info` that came with the results, or a failure. Raises EOFError or OSError if the process has ended."""
        answer: dict[str, Any] | Failure = self.pipe.recv()
        return answer

    def wait_for_exit_code(self, seconds: float) -> int | None:
        """Return the exit code once the process has ended; None if it still runs after `seconds`."""
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self) -> None:
        """End the process, in whatever state it is."""
        self._process.kill()  # terminate() would wait forever for a stopped process
        self._process.join()
        self.pipe.close()


def _serve(
    make: Callable[[], SeededEpisodes], pipe: Connection, far_end: Connection, results: Results, strict: bool, rank: int
) -> None:
    _become_worker(rank)
    far_end.close()  # otherwise this process would not notice that the rank has closed it
    try:
        env = make()
        observation, info = env.reset()
        results.write(observation, 0.0, bool(info.get("waiting")), False)  # a replay may end with an episode
        while True:
            if strict:
                results.check_finite()
            pipe.send(info)
            action = pipe.recv()
            *result, info = env.step(action)
            results.write(*result)
    except EOFError:
        return  # the rank has ended
    except Exception as error:
        trace = traceback.format_exc()
        # the trace of a violation that this package detected shows no code of the user
        only_our_code = isinstance(error, ContractViolation) and "direct cause" not in trace
        pipe.send(Failure(failure_text(type(error), error), "" if only_our_code else trace))


def _become_worker(rank: int) -> None:
    # a worker is forked from the rank and inherits its signal handlers, with which it would survive SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the rank ends its workers
    die_with_parent(rank)
    if "torch" in sys.modules:  # OpenMP's threads are not forked: a second thread would be waited for forever
        sys.modules["torch"].set_num_threads(1)
