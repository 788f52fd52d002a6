"""A process beside rank 0 that does what training must not wait for: it feeds a tracker, it makes films.

It is told nothing but its run's folder, and reads there what it needs. So whatever becomes of it, training goes on to the same bits; and
a package that it imports brings no thread and no memory into a rank.

    rank 0 ── how long it may still take ──▶ companion's input      at the end; the end of the input means that rank 0 has ended
           ◀── lines for the terminal ────── companion's output
           ◀── the last line of logs/NAME.log ── companion's errors      why it failed
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import cast

from lockstep.processes.parent import add_parent_path, own_command, own_environment
from lockstep.run.stop import SIGNALS, asked_to_stop

__all__ = ["Errand", "Sidecar", "SidecarFailed"]

_SAID = 2.0
"""Seconds of waiting before the terminal says so."""
_ORPHANED = 5.0
"""Seconds that a companion has when rank 0 has ended without a word."""


class SidecarFailed(RuntimeError):
    """It ended by itself, or had not done its work in time. The message says why."""


class Sidecar:
    """A companion, as rank 0 sees it: a logger that only looks whether it is still there."""

    def __init__(
        self,
        name: str,
        run: Path,
        words: Sequence[str],
        patience: Callable[[], float],
        nice: int | None = None,
    ) -> None:
        """Starts `lockstep WORDS …`.

        Args:
            name: For messages, and for logs/NAME.log.
            run: The run's folder.
            words: Of the command.
            patience: Asked at the end: how many seconds it may take to finish its work.
            nice: Its niceness; None: it runs only where nothing else would (SCHED_IDLE, or 19 where there is no such class).
        """
        self._name, self._patience, self._words = name, patience, tuple(words)
        self._log = run / "logs" / f"{name}.log"
        self._log.parent.mkdir(exist_ok=True)
        self._start(nice)

    def _start(self, nice: int | None) -> None:
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                own_command(*self._words),
                env=own_environment(),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Ctrl-C reaches only us. No session of its own: where the kernel groups by session, niceness counts only within one.
                process_group=0,
            )
        self._input, self._output = cast(FileIO, self._process.stdin), cast(FileIO, self._process.stdout)
        os.set_blocking(self._output.fileno(), False)
        self._heard = b""
        with suppress(OSError):
            _step_back(self._process.pid, nice)

    def write(self, metrics: Mapping[str, object]) -> None:
        """Nothing: it reads metrics.jsonl."""

    def flush(self) -> None:
        """Tells what it has to say. Raises CompanionFailed if it has ended."""
        self._tell()
        if self._process.poll() is not None:
            raise SidecarFailed(self._reason())

    def close(self) -> None:
        """Waits for the rest of its work. Raises CompanionFailed if that was not done."""
        patience = self._patience()
        with suppress(OSError):  # it has ended already
            self._input.write(f"{patience}\n".encode())
        late = not self._wait(patience)
        if late:
            self._process.kill()
        code = self._process.wait()
        self._tell()
        self._input.close()
        self._output.close()
        if late and patience > _SAID:
            raise SidecarFailed("it was not done in time")
        if code and not late:
            raise SidecarFailed(self._reason())
        with suppress(OSError):
            self._log.unlink()
            self._log.parent.rmdir()

    def _wait(self, patience: float) -> bool:
        """Whether it ended in time, before a new request to stop."""
        before, began, told = asked_to_stop(), time.monotonic(), False
        while self._process.poll() is None:
            waited = time.monotonic() - began
            if waited > patience or asked_to_stop() != before:
                return False
            if waited > _SAID and not told:
                told = True
                text = f"lockstep: waiting up to {patience:.0f} s for {self._name} to finish; Ctrl-C leaves it"
                print(text, file=sys.stderr, flush=True)
            self._tell()
            time.sleep(0.02)
        return True

    def _tell(self) -> None:
        if self._output.closed:
            return
        *lines, self._heard = (self._heard + (self._output.read() or b"")).split(b"\n")
        for line in lines:
            print(f"lockstep: {line.decode(errors='replace')}", file=sys.stderr, flush=True)

    def _reason(self) -> str:
        """The last line that is not empty among its errors."""
        lines = self._log.read_text(errors="replace").split("\n") if self._log.exists() else []
        last = next((line.strip().removeprefix("lockstep: ") for line in reversed(lines) if line.strip()), "")
        return f"{last or f'its process ended with code {self._process.poll()}'} ({self._log} has more)"


def _step_back(process: int, nice: int | None) -> None:
    if nice is None and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.setpriority(os.PRIO_PROCESS, process, 19 if nice is None else nice)


class Errand:
    """A companion, as it sees itself. It ends when its time is over, and soon after rank 0 has ended, whatever it is doing."""

    def __init__(self) -> None:
        """What is printed from now on, by whatever package, goes to the log."""
        for number in SIGNALS:  # a scheduler sends them to every process; rank 0 decides
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        add_parent_path()
        self._output = os.dup(1)
        os.dup2(2, 1)
        self.over = threading.Event()
        """Set when training has ended: what is left is to be finished."""
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, line: str) -> None:
        """Shows a line on the terminal of rank 0."""
        with suppress(OSError):
            os.write(self._output, f"{' '.join(line.split())}\n".encode())

    def _listen(self) -> None:
        said = sys.stdin.readline()
        # the kernel ends the process at that time, so that no package can keep it
        signal.setitimer(signal.ITIMER_REAL, float(said) + 1 if said else _ORPHANED)
        self.over.set()
