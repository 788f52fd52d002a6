"""Starting processes of this installation, and ending with the process that started this one."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

__all__ = ["die_with_parent", "look_where_parent_looks", "own_command", "own_environment", "run_in_child"]

_PR_SET_PDEATHSIG = 1
_POLL = 0.02
"""Seconds between two looks at a child."""


def own_command(*words: str) -> list[str]:
    """The command `lockstep WORDS …` of this installation."""
    # `-m` puts the working folder before all packages. The new process looks there only if this one does.
    here = os.path.realpath(os.getcwd())  # noqa: PTH109
    looks = any(not path or os.path.realpath(path) == here for path in sys.path)
    return [sys.executable, *([] if looks else ["-P"]), "-m", "lockstep", *words]


def own_environment() -> dict[str, str]:
    """What such a process finds in its environment: who started it, and where that one looks for modules."""
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "LOCKSTEP_PARENT": str(os.getpid()), "LOCKSTEP_PATH": path}


def look_where_parent_looks() -> None:
    """Finds modules where the process that started this one, with `own_environment`, finds them."""
    path = os.environ["LOCKSTEP_PATH"].split(os.pathsep)
    sys.path += [entry for entry in path if entry and entry not in sys.path]


def die_with_parent(parent: int) -> None:
    """From now on the kernel kills this process when `parent` ends, however that happens (Linux). Exits if it already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before prctl could know
            os._exit(1)


def run_in_child(work: Callable[[], None], check: Callable[[], None]) -> int:
    """Run `work` in a forked process and return its exit code: 0, 1 if it raised, minus the signal if it was killed.

    `check` is called while waiting. If it raises, the process and all that it has started are killed. The process ends with this one.
    """
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            # schedulers signal every process of a job; whether to stop is for the parent to decide
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, signal.SIG_IGN)
            die_with_parent(parent)
            work()
            code = 0
        finally:
            os._exit(code)
    with suppress(OSError):  # whichever of the two comes first
        os.setpgid(child, child)
    try:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            check()
            time.sleep(_POLL)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
