"""Watchdog of a rank that another launcher has started: a process beside the rank that ends it when its heartbeat stops.

    python -m lockstep.runtime.watchdog FILE INDEX RANK TIMEOUT

FILE is the descriptor of the memory that holds the heartbeat, as number INDEX. The process also ends a rank that hangs inside C++.
`runtime/watch.py` watches the ranks that lockstep itself has launched.
"""

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lockstep.group.memory import create_memory
from lockstep.processes import heartbeat
from lockstep.processes.children import module_command, module_environment
from lockstep.processes.heartbeat import STOPPED_AFTER, Heartbeats
from lockstep.processes.signals import STACKS_SIGNAL, handled_signals
from lockstep.runtime.hang_detector import STACKS_TIME, HangDetector

__all__ = ["watchdog"]

_POLL = 0.1
"""Seconds between two polls of the heartbeat."""
_EXIT_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGABRT)
"""Signal at which process 1 of a container ends: the kernel ignores SIGKILL that is sent to it from inside the container."""


@contextmanager
def watchdog(rank: int, size: int, timeout: float) -> Iterator[None]:
    """End this process with SIGKILL if its heartbeat stops for `timeout` seconds in this block, after it has printed its stack traces.

    A process that is the only rank is not watched, because it may be in a debugger. Nor is one on a system without anonymous memory files.
    """
    if size == 1 or heartbeat.is_watched():
        yield
        return
    faulthandler.register(STACKS_SIGNAL, 2)
    if os.getpid() == 1:
        _exit_at(_EXIT_SIGNAL)
    process = _start(rank, timeout)
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def _exit_at(number: int) -> None:
    """Exit with code `number` at this signal, at once: the handler is the C library's `_exit`, so it also runs when Python code can't."""
    library = ctypes.CDLL(None)
    library.signal.argtypes = ctypes.c_int, ctypes.c_void_p
    library.signal(number, ctypes.cast(library._exit, ctypes.c_void_p))


def _start(rank: int, timeout: float) -> "subprocess.Popen[bytes] | None":
    """Start the watchdog; None if the system has no memory for the heartbeat."""
    handle, created = heartbeat.handle(), None
    if handle is None:  # the rank shares no memory with others
        try:
            created = create_memory(1)
        except OSError:
            return None
        handle = created, 0
        heartbeat.attach(Heartbeats(created, 1).cells_of(0), watched=False)
    command = module_command("lockstep.runtime.watchdog", *map(str, (*handle, rank, timeout)))
    try:
        return subprocess.Popen(command, env=module_environment(), stdin=subprocess.DEVNULL, pass_fds=handle[:1])
    finally:
        if created is not None:
            os.close(created)


def main(file: int, index: int, rank: int, timeout: float) -> None:
    """Watch the parent process until it ends, or end it."""
    parent = os.getppid()
    for number in handled_signals():  # schedulers send them to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    detector = HangDetector(rank, parent, Heartbeats(file, index + 1).of_rank(index), timeout)
    now = time.monotonic()
    while os.getppid() == parent:
        time.sleep(_POLL)
        before, now = now, time.monotonic()
        if now - before > STOPPED_AFTER:
            detector.skip(now - before)
        fault = detector.find_fault(now)
        if fault is not None:
            detector.report(fault)
            with suppress(ProcessLookupError):
                os.kill(parent, STACKS_SIGNAL)
                time.sleep(STACKS_TIME)
                os.kill(parent, _EXIT_SIGNAL if parent == 1 else signal.SIGKILL)
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
