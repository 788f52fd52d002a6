"""The runs of a sweep as actors of Ray. An actor starts one run, with all of its ranks, on a node that has room for them."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any

import ray
from ray.exceptions import RayError

from lockstep.clusters.ray_connection import process_variables
from lockstep.clusters.ray_rank import RankProcess
from lockstep.files import open_to_append
from lockstep.processes.exit_codes import BAD_INPUT, STOPPED_BY_SIGNAL
from lockstep.processes.parent import own_command

__all__ = ["RayRun"]

_POLL = 0.5
"""Seconds between two requests for the state of a run."""


class RayRun:
    """A run, with the methods of `subprocess.Popen` that a sweep uses. It starts again if its actor is lost, for example with a node."""

    def __init__(self, arguments: Sequence[str], resources: Mapping[str, float], log: Path, restarts: int) -> None:
        """Start `lockstep WORDS` as soon as a node has room for it, and again after a loss, at most `restarts` times.

        `resources` are those of all ranks of the run, by Ray's names. `log` is the file for the output.
        """
        self._command = own_command(*arguments)
        self._resources = resources
        self._log = log
        self._restarts = restarts
        self._used = 0
        self._stopping = False
        self._code: int | None = None
        self._start()

    def _start(self) -> None:
        options = {
            "num_cpus": self._resources.get("CPU", 0),
            "num_gpus": self._resources.get("GPU", 0),
            "max_restarts": 0,
        }
        self._actor: Any = ray.remote(RankProcess).options(**options).remote()
        self._request = self._actor.start.remote(self._command, process_variables(), str(Path.cwd()))
        self._has_started = False
        self._next_poll = 0.0

    def poll(self) -> int | None:
        """Return the exit code, or None if the run waits or is going on. Write its new output to its log."""
        if self._code is None and time.monotonic() >= self._next_poll and ray.wait([self._request], timeout=0)[0]:
            try:
                self._code = self._read(ray.get(self._request))
            except RayError:
                self._code = self._after_loss()
            if self._code is not None:
                self.kill()
        return self._code

    def _read(self, answer: Any) -> int | None:
        """Return the exit code in the answer to a request, if it has one, and send the next request."""
        code = None
        if self._has_started:
            self._write([line for _, line in answer.output])
            code = answer.code
        elif answer is not None:
            self._write(
                [
                    f"lockstep: the run can't be started: {answer}; all hosts must share the current folder and the installation"
                ]
            )
            code = BAD_INPUT
        self._has_started = True
        if code is None:
            self._request = self._actor.state.remote()
            self._next_poll = time.monotonic() + _POLL
        return code

    def _after_loss(self) -> int | None:
        if self._stopping:
            return STOPPED_BY_SIGNAL
        if self._used == self._restarts:
            return -SIGKILL
        self._used += 1
        self._write(
            [f"lockstep: the run was lost with its actor; starting again (restart {self._used} of {self._restarts})"]
        )
        self._start()
        return None

    def _write(self, lines: Sequence[str]) -> None:
        if lines:
            with os.fdopen(open_to_append(self._log), "a") as log:
                log.write("".join(f"{line}\n" for line in lines))

    def terminate(self) -> None:
        """Ask the run to stop cleanly. A run that waits for room is not started."""
        self._stopping = True
        if self._has_started:
            self._actor.stop.remote()
        elif self._code is None:
            self._code = STOPPED_BY_SIGNAL
            self.kill()

    def kill(self) -> None:
        """End the run at once, with its actor."""
        with suppress(RayError):
            ray.kill(self._actor)

    def wait(self) -> None:
        """Do nothing: the actor ends by itself after `kill`."""
