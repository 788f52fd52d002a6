"""Starting processes of this installation, and ending with the process that started this one."""

import ctypes
import os
import signal
import sys

__all__ = ["die_with_parent", "look_where_parent_looks", "own_command", "own_environment"]

_PR_SET_PDEATHSIG = 1


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
