"""The actor of Ray that runs one rank as its child process."""

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import ray

from lockstep.processes.parent import die_with_parent

__all__ = ["RankProcess", "RankState"]


class RankState(NamedTuple):
    """Progress of a rank since the last call."""

    lines: list[str]
    """Lines that it has written."""
    code: int | None
    """Exit code, as a shell reports it; None: it is running."""


class RankProcess:
    """One rank. It ends with its actor, and the actor with its raylet, however they end: Ray leaves both running when a raylet is killed."""

    def __init__(self) -> None:
        die_with_parent(os.getppid())
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

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
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                preexec_fn=partial(_prepare, os.getpid()),
            )
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        self._process = process
        self._reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._reader.start()
        return None

    def state(self) -> RankState:
        """Return the new lines and the exit code, which comes with the last lines."""
        assert self._process is not None
        assert self._reader is not None
        code = None if self._reader.is_alive() else self._process.poll()
        lines = []
        with suppress(queue.Empty):
            while True:
                lines.append(self._lines.get_nowait())
        return RankState(lines, 128 - code if code is not None and code < 0 else code)

    def stop(self) -> None:
        """Ask the rank to stop cleanly."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(line.rstrip("\n"))
        process.wait()


def _prepare(parent: int) -> None:
    """Tie the child to the actor, and undo what Ray has set for the actor's signals."""
    die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
