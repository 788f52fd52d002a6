"""The actor of Ray that runs one rank as its child process."""

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, NamedTuple

import ray

from lockstep.processes.parent import die_with_parent
from lockstep.processes.signals import SIGNALS

__all__ = ["RankProcess", "RankState"]

_LAST_LINES = 2.0
"""Seconds to wait for the end of the output of a rank that has ended: a process that it has started may keep the pipe open."""


class RankState(NamedTuple):
    """Progress of a rank since the last call."""

    output: list[tuple[bool, str]]
    """Lines that it has written, each with True if it was written to the standard error stream."""
    code: int | None
    """Exit code, minus the signal's number if it was killed; None: it is running."""


class RankProcess:
    """One rank. It ends with its actor, and the actor with its raylet, however they end: Ray leaves both running when a raylet is killed."""

    def __init__(self) -> None:
        die_with_parent(os.getppid())
        self._output: queue.SimpleQueue[tuple[bool, str]] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []

    def node(self) -> str:
        """Return the id of the node that runs this actor."""
        return str(ray.get_runtime_context().get_node_id())

    def start(self, command: Sequence[str], variables: Mapping[str, str], folder: str) -> str | None:
        """Start the rank in `folder`, with additional environment variables. Return the error if it can't be started."""
        # the kernel kills the child when the thread that has started it ends: this is the actor's main thread
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                preexec_fn=partial(_prepare, os.getpid()),
            )
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        self._process = process
        for stream in (process.stdout, process.stderr):
            reader = threading.Thread(target=self._read, args=(stream, stream is process.stderr), daemon=True)
            reader.start()
            self._readers.append(reader)
        return None

    def state(self) -> RankState:
        """Return the new lines and the exit code, which comes with the last lines."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            for reader in self._readers:
                reader.join(_LAST_LINES)
        output = []
        with suppress(queue.Empty):
            while True:
                output.append(self._output.get_nowait())
        return RankState(output, code)

    def stop(self) -> None:
        """Ask the rank to stop cleanly."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)

    def _read(self, stream: IO[str], is_error: bool) -> None:
        for line in stream:
            self._output.put((is_error, line.rstrip("\n")))


def _prepare(parent: int) -> None:
    """Tie the child to the actor, and undo what Ray has set for the actor's signals. They stay pending until the rank has its handlers."""
    die_with_parent(parent)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
