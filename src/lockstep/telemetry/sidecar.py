"""Sidecar processes, which rank 0 starts for work that training must not wait for, such as trackers and videos.

A sidecar gets only the path of the run folder and reads its data there. So no failure of a sidecar changes the bits of
training, and the packages that it imports add no thread and no memory to a rank.

    rank 0 ── seconds left to finish ────▶ stdin of the sidecar     sent when training ends; end of file: rank 0 has ended
           ◀── lines for the terminal ──── stdout of the sidecar
           ◀── last line: the reason ───── stderr of the sidecar, in logs/NAME.log
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
from typing import TypeVar, cast

from lockstep.files import make_folder, open_to_append, read_file
from lockstep.messages import print_warning
from lockstep.processes.heartbeat import beat
from lockstep.processes.parent import add_parent_path, own_command, own_environment
from lockstep.processes.signals import SIGNALS
from lockstep.run.stop import asked_to_stop

__all__ = ["Sidecar", "SidecarContext", "SidecarFailed"]

_QUIET_WAIT = 2.0
"""Seconds that rank 0 waits for a sidecar before it prints that it is waiting."""
_ORPHAN_TIMEOUT = 5.0
"""Seconds that a sidecar has to finish if rank 0 ended without sending a time."""
_LOG_LIMIT = 2**26
"""Largest size in bytes of a log that is searched for the reason of a failure."""
_PERIOD = 0.5
"""Seconds between two searches for pending items."""

_Item = TypeVar("_Item")


class SidecarFailed(RuntimeError):
    """The sidecar exited early, or did not finish its work in time. The message says why."""


class Sidecar:
    """Handle of a sidecar process in rank 0: a logger that ignores metrics and checks that the process is alive."""

    def __init__(
        self, name: str, run: Path, arguments: Sequence[str], timeout: Callable[[], float], nice: int | None = None
    ) -> None:
        """Start `lockstep ARGUMENTS...` as a child process, with the log file logs/NAME.log in the folder `run`.

        `timeout` is called when training ends, and returns the seconds that the sidecar may take to finish its work.
        `nice` is the niceness of the process. None means that the process uses only CPU time that no other process
        needs: scheduling class SCHED_IDLE, or niceness 19 on systems without it.
        """
        self._name, self._timeout, self._arguments = name, timeout, tuple(arguments)
        self._log = run / "logs" / f"{name}.log"
        make_folder(self._log.parent)
        self._start(nice)

    def _start(self, nice: int | None) -> None:
        with os.fdopen(open_to_append(self._log), "ab") as errors:
            self._process = subprocess.Popen(
                own_command(*self._arguments),
                env=own_environment(),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # A process group of its own, so that Ctrl-C reaches only rank 0. Not a session of its own: if the kernel schedules by session
                # (autogroup), niceness has an effect only among the processes of one session.
                process_group=0,
            )
        self._input, self._output = cast(FileIO, self._process.stdin), cast(FileIO, self._process.stdout)
        os.set_blocking(self._output.fileno(), False)
        self._partial_line = b""
        with suppress(OSError):
            _lower_priority(self._process.pid, nice)

    def _restart(self) -> None:
        """Restart the process at normal priority: training no longer needs the CPU, and a busy machine must not starve the sidecar."""
        self._process.kill()
        self._process.wait()
        self._input.close()
        self._output.close()
        self._start(nice=0)

    def write(self, metrics: Mapping[str, object]) -> None:
        """Do nothing: the sidecar reads metrics.jsonl itself."""

    def write_evaluation(self, row: Mapping[str, object]) -> None:
        """Do nothing: the sidecar reads evaluations.jsonl itself."""

    def flush(self) -> None:
        """Print the lines that the sidecar has sent. Raises SidecarFailed if the process has exited."""
        self._report_progress()
        if self._process.poll() is not None:
            raise SidecarFailed(self._reason())

    def close(self) -> None:
        """Wait until the sidecar has finished its work. Raises SidecarFailed if it failed or ran out of time."""
        timeout = self._timeout()
        with suppress(OSError):  # the process has exited already
            self._input.write(f"{timeout}\n".encode())
        late = not self._wait(timeout)
        if late:
            self._process.kill()
        code = self._process.wait()
        self._report_progress()
        self._input.close()
        self._output.close()
        if late and timeout > _QUIET_WAIT:
            raise SidecarFailed("stopped before the work was finished")
        if code and not late:
            raise SidecarFailed(self._reason())
        with suppress(OSError):
            self._log.unlink()
            self._log.parent.rmdir()

    def _wait(self, timeout: float) -> bool:
        """Wait for the process. Return False if the time runs out, or if another stop signal arrives first."""
        earlier_signal, began, announced = asked_to_stop(), time.monotonic(), False
        while self._process.poll() is None:
            waited = time.monotonic() - began
            if waited > timeout or asked_to_stop() != earlier_signal:
                return False
            if waited > _QUIET_WAIT and not announced:
                announced = True
                text = f"lockstep: waiting for {self._name} to finish, at most {timeout:.0f} s; press Ctrl-C to skip"
                print(text, file=sys.stderr, flush=True)
            self._report_progress()
            beat()
            time.sleep(0.02)
        return True

    def _report_progress(self) -> None:
        """Print the lines that the sidecar has sent. Called a few times per second, also while `close` waits."""
        if self._output.closed:
            return
        *lines, self._partial_line = (self._partial_line + (self._output.read() or b"")).split(b"\n")
        for line in lines:
            print_warning(line.decode(errors="replace"))

    def _reason(self) -> str:
        """Return the last non-empty line that the sidecar wrote to stderr, or its exit code if there is none."""
        lines: list[str] = []
        with suppress(OSError):
            lines = read_file(self._log, _LOG_LIMIT).decode(errors="replace").split("\n")
        last = next((line.strip().removeprefix("lockstep: ") for line in reversed(lines) if line.strip()), "")
        return f"{last or f'the process exited with code {self._process.poll()}'} (details: {self._log})"


def _lower_priority(process: int, nice: int | None) -> None:
    if nice is None and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.setpriority(os.PRIO_PROCESS, process, 19 if nice is None else nice)


class SidecarContext:
    """Connection to rank 0 in the sidecar process itself.

    The process ends when its time runs out, and soon after rank 0 has ended.
    """

    def __init__(self) -> None:
        """Ignore stop signals, redirect stdout to the log, and start the thread that waits for the end of training."""
        for number in SIGNALS:  # a scheduler sends them to every process of a job; rank 0 decides when the sidecar ends
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        add_parent_path()
        self._output = os.dup(1)
        os.dup2(2, 1)  # whatever a package prints goes to the log, not to the terminal of rank 0
        self.training_ended = threading.Event()
        """Set when training has ended: the sidecar finishes the remaining work and exits."""
        threading.Thread(target=self._listen, daemon=True).start()

    def print_line(self, line: str) -> None:
        """Print a line on the terminal of rank 0."""
        with suppress(OSError):
            os.write(self._output, f"{' '.join(line.split())}\n".encode())

    def process_all(self, pending: Callable[[], Sequence[_Item]], process: Callable[[_Item], None]) -> None:
        """Process pending items one after the other, until training has ended and no item is pending."""
        while True:
            # read before the search: once training has ended, no further item is added
            training_ended = self.training_ended.is_set()
            items = pending()
            if items:
                process(items[0])
            elif training_ended:
                return
            else:
                self.training_ended.wait(_PERIOD)

    def _listen(self) -> None:
        timeout = sys.stdin.readline()
        # the kernel kills the process when the timer expires, even if the code of a package hangs
        signal.setitimer(signal.ITIMER_REAL, float(timeout) + 1 if timeout else _ORPHAN_TIMEOUT)
        self.training_ended.set()
