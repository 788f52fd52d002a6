"""Commands that start processes of this installation, and functions that tie a process to its parent."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from lockstep.processes.signals import SIGNALS

__all__ = ["Child", "add_parent_path", "die_with_parent", "own_command", "own_environment"]

_PR_SET_PDEATHSIG = 1


def own_command(*arguments: str) -> list[str]:
    """Return the command `lockstep ARGUMENTS …` of this installation."""
    # `-m` puts the working folder at the front of sys.path; `-P` prevents that, unless this process imports from there too
    here = os.path.realpath(os.getcwd())  # noqa: PTH109
    imports_from_here = any(not path or os.path.realpath(path) == here for path in sys.path)
    return [sys.executable, *([] if imports_from_here else ["-P"]), "-m", "lockstep", *arguments]


def own_environment() -> dict[str, str]:
    """Return the environment of an `own_command`: it adds this process's id and its module search path."""
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "LOCKSTEP_PARENT": str(os.getpid()), "LOCKSTEP_PATH": path}


def add_parent_path() -> None:
    """Append the parent's module search path, which `own_environment` passes on, to `sys.path`."""
    path = os.environ["LOCKSTEP_PATH"].split(os.pathsep)
    sys.path += [entry for entry in path if entry and entry not in sys.path]


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when `parent` ends, however that happens (Linux only).

    Exit at once if `parent` has already ended.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the call of prctl
            os._exit(1)


class Child:
    """Forked process that calls a function. It ends with this process."""

    def __init__(self, work: Callable[[], None]) -> None:
        """Start the process. Its exit code is 1 if `work` raises, else 0."""
        parent = os.getpid()
        self._code: int | None = None
        self._process = os.fork()
        if self._process == 0:
            code = 1
            try:
                os.setpgid(0, 0)
                # schedulers signal every process of a job, but the parent decides whether to stop
                for number in SIGNALS:
                    signal.signal(number, signal.SIG_IGN)
                die_with_parent(parent)
                work()
                code = 0
            finally:
                os._exit(code)
        with suppress(OSError):  # both processes set it, because either may run first
            os.setpgid(self._process, self._process)

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal's number if the process was killed; None if it has not ended."""
        if self._code is None:
            ended, status = os.waitpid(self._process, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def kill(self) -> None:
        """Kill the process and all processes that it has started, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process, signal.SIGKILL)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
