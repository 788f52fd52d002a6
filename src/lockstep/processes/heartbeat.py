"""Heartbeat of a rank: counters in memory that the processes of a host share, with the stage, the iteration and the environment of the rank.

The launcher ends a rank whose heartbeat has stopped, and its message has the stage, the iteration and the environment. A process has one
heartbeat, so this module has global state. Processes without a launcher, and processes that a rank forks, use private memory.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from lockstep.phases import STAGES

__all__ = [
    "ENVIRONMENT",
    "STOPPED_AFTER",
    "WAITS_FOR",
    "Heartbeat",
    "Heartbeats",
    "attach",
    "beat",
    "enter",
    "handle",
    "is_watched",
    "keep_alive",
    "own_cells",
    "set_exit_code",
    "set_iteration",
    "waiting",
]

STOPPED_AFTER = 2.0
"""A poll that is late by more seconds means that the polling process was suspended, for example by Ctrl-Z. The others were suspended as
well, so their timeouts begin again."""
LINE_BYTES = 64
"""Bytes of a heartbeat: a cache line, so that ranks do not slow each other down."""
PROCESS, LOST, _EXIT_CODE, _BEATS, _STAGE, _ITERATION, ENVIRONMENT, WAITS_FOR = range(LINE_BYTES // 8)
"""Fields of a heartbeat, int64: the rank's process id (0: not started), 1 + the rank that it found lost (0: none), 1 + the exit code that it is
about to return (0: none), number of beats, index of the stage, iteration, 1 + environment that is being stepped (0: none), and
1 + the rank that the rank has been waiting for (0: none), or -1 while it waits inside a library, where it can't beat."""
_IN_LIBRARY = -1

_own = memoryview(bytearray(LINE_BYTES)).cast("q")
_watched = False
_handle: tuple[int, int] | None = None


class Heartbeat:
    """The heartbeat of one rank, as another process reads it."""

    def __init__(self, fields: memoryview) -> None:
        """`fields` are the 8 int64 values of the heartbeat."""
        self._fields = fields

    def beat(self) -> None:
        """Show that the rank is alive. For code that knows the rank; all other code calls the function `beat`."""
        self._fields[_BEATS] += 1

    @property
    def beats(self) -> int:
        """Number of beats; 0 before the rank has started."""
        return int(self._fields[_BEATS])

    @property
    def progress(self) -> tuple[int, int]:
        """Number of beats, and the environment that is being stepped: at least one of them changes while the rank makes progress."""
        return int(self._fields[_BEATS]), int(self._fields[ENVIRONMENT])

    @property
    def waiting(self) -> bool:
        """True while the rank waits for another one inside a library."""
        return self._fields[WAITS_FOR] == _IN_LIBRARY

    @property
    def exit_code(self) -> int | None:
        """The exit code that the rank has decided to return; None before."""
        return int(self._fields[_EXIT_CODE]) - 1 if self._fields[_EXIT_CODE] else None

    @property
    def stage(self) -> str:
        """The stage that the rank is in, one of STAGES."""
        return STAGES[int(self._fields[_STAGE]) % len(STAGES)]

    @property
    def iteration(self) -> int:
        """The iteration that the rank is in; 0 before the first."""
        return int(self._fields[_ITERATION])

    def describe_location(self) -> str:
        """Describe where the rank is, for messages."""
        parts = [f"stage {self.stage}"]
        if self.iteration:
            parts.append(f"iteration {self.iteration}")
        environment = self._fields[ENVIRONMENT]  # the rank may clear it meanwhile
        if environment:
            parts.append(f"environment {environment - 1}")
        return ", ".join(parts)


class Heartbeats:
    """The heartbeats of all ranks of a host, at the start of their shared memory."""

    def __init__(self, file: int, size: int) -> None:
        """Map the heartbeats of `size` ranks. `file` is a descriptor from `create_memory`, which stays open."""
        self._map = mmap.mmap(file, size * LINE_BYTES)
        self.fields = memoryview(self._map).cast("q")
        self.size = size

    def cells_of(self, index: int) -> memoryview:
        """Return the fields of the rank that is number `index` on this host."""
        width = LINE_BYTES // 8
        return self.fields[index * width : (index + 1) * width]

    def of_rank(self, index: int) -> Heartbeat:
        """Return the heartbeat of the rank that is number `index` on this host."""
        return Heartbeat(self.cells_of(index))


def attach(fields: memoryview, watched: bool, handle: tuple[int, int] | None = None) -> None:
    """Beat in `fields` from now on. `watched` is True if a launcher ends this process when its heartbeat stops.

    `handle` is the file descriptor of the memory and the index of the heartbeat in it, with which another process can read the heartbeat.
    """
    global _own, _watched, _handle
    _own, _watched, _handle = fields, watched, handle
    _own[PROCESS] = os.getpid()
    beat()


def own_cells() -> memoryview:
    """Return the fields of this process, for loops in which a call of `beat` would cost too much. Such loops set ENVIRONMENT themselves."""
    return _own


def is_watched() -> bool:
    """Return True if a launcher watches the heartbeat of this process."""
    return _watched


def handle() -> tuple[int, int] | None:
    """Return the handle of the heartbeat of this process, see `attach`; None if its memory is private."""
    return _handle


def beat(environment: int = -1) -> None:
    """Show that this process is alive. `environment` is the number of the environment that is about to be stepped."""
    fields = _own
    fields[ENVIRONMENT] = environment + 1
    fields[_BEATS] += 1


def keep_alive() -> None:
    """Show that this process is alive, without changing the environment that is shown. Any thread may call it."""
    _own[_BEATS] += 1


def enter(stage: str) -> None:
    """Show that this process begins a stage, one of STAGES."""
    _own[_STAGE] = _INDEX[stage]
    beat()


def set_iteration(iteration: int) -> None:
    """Show the iteration that begins."""
    _own[_ITERATION] = iteration


def set_exit_code(code: int) -> None:
    """Show that this process is about to end by itself with this exit code. Without it, code outside of lockstep has ended the process."""
    _own[_EXIT_CODE] = code + 1


@contextmanager
def waiting() -> Iterator[None]:
    """Show that this process waits for another rank inside a library, where it can't beat."""
    _own[WAITS_FOR] = _IN_LIBRARY
    try:
        yield
    finally:
        _own[WAITS_FOR] = 0
        beat()


def _detach() -> None:
    global _own, _watched, _handle
    _own, _watched, _handle = memoryview(bytearray(LINE_BYTES)).cast("q"), False, None


_INDEX = {stage: index for index, stage in enumerate(STAGES)}
os.register_at_fork(after_in_child=_detach)
