"""Commands that start processes of this installation, and functions that tie a process to its parent."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from lockstep.processes.signals import SIGNALS

__all__ = ["add_parent_path", "die_with_parent", "own_command", "own_environment", "run_in_child"]

_PR_SET_PDEATHSIG = 1
_POLL = 0.02
"""Seconds between two polls of a child."""


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


def run_in_child(work: Callable[[], None], check: Callable[[], None]) -> int:
    """Run `work` in a forked process and return its exit code: 0, 1 if it raised, minus the signal's number if it was killed.

    `check` is called repeatedly while waiting. If `check` raises, the child and all processes that the child has
    started are killed. The child ends with this process.
    """
    parent = os.getpid()
    child = os.fork()
    if child == 0:
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
        os.setpgid(child, child)
    try:
        while True:
            ended_process, status = os.waitpid(child, os.WNOHANG)
            if ended_process:
                return os.waitstatus_to_exitcode(status)
            check()
            time.sleep(_POLL)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
