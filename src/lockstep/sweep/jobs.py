"""Execution of several runs in parallel. Each run is a process that starts the run or resumes it from its checkpoint."""

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from lockstep.config.flags import module_flags
from lockstep.files import open_to_append, read_file
from lockstep.processes.children import module_command, module_environment
from lockstep.processes.exit_codes import STOPPED_BY_SIGNAL
from lockstep.processes.parent import die_with_parent
from lockstep.run.stop import asked_to_stop
from lockstep.sweep.member import Member

__all__ = ["ParallelRuns", "RunProcess", "StartRun", "last_log_line", "start_here"]

_LOG_LIMIT = 2**26
"""Largest size in bytes of a log that is searched for the last line."""
_POLL_INTERVAL = 0.05
"""Seconds between two checks for processes that have ended."""


class RunProcess(Protocol):
    """Process of a run, as `subprocess.Popen`."""

    def poll(self) -> int | None:
        """Return the exit code, or None if the process has not ended."""

    def terminate(self) -> None:
        """Ask the run to stop cleanly."""

    def kill(self) -> None:
        """End the process at once."""

    def wait(self) -> object:
        """Wait until the process has ended."""


StartRun = Callable[[Member, int], RunProcess]
"""Function that starts the process of a run in a slot, which is a number below the number of runs in parallel."""


@dataclass(frozen=True)
class ParallelRuns:
    """Runner of up to `count` runs in parallel."""

    count: int
    start: StartRun
    on_end: Callable[[Member, int], None]
    """Called with every run that ended and its exit code."""
    runs_to_stop: Callable[[], Collection[str]] = frozenset
    """Called several times a second; returns the names of the members that are not to be run, or not any longer."""

    def run(self, members: Sequence[Member]) -> dict[str, int]:
        """Run all members and return their exit codes by name; none for members that were pruned or not started because of a stop signal.

        A stop signal is forwarded once: every run ends after its current iteration and saves a checkpoint. A pruned run
        gets one too.
        """
        waiting, codes = deque(members), dict[str, int]()
        running: dict[int, tuple[Member, RunProcess]] = {}
        signaled: set[str] = set()
        try:
            while waiting or running:
                ending = self.runs_to_stop()
                waiting = deque(member for member in waiting if member.name not in ending and not asked_to_stop())
                for member, process in running.values():
                    if member.name not in signaled and (asked_to_stop() or member.name in ending):
                        signaled.add(member.name)
                        process.terminate()
                for slot in range(self.count):
                    if waiting and slot not in running:
                        member = waiting.popleft()
                        running[slot] = member, self.start(member, slot)
                for slot, (member, process) in list(running.items()):
                    code = process.poll()
                    if code is not None:
                        del running[slot]
                        # SIGTERM kills a process that has not installed its signal handler yet
                        early = member.name in signaled and code == -signal.SIGTERM
                        codes[member.name] = STOPPED_BY_SIGNAL if early else code
                        self.on_end(member, codes[member.name])
                time.sleep(_POLL_INTERVAL)
        finally:
            for _, process in running.values():
                process.kill()
                process.wait()
        return codes


def start_here(logs: Path, count: int, restarts: int) -> StartRun:
    """Return a function that starts a run on this host as `lockstep resume`. Its output goes to a file in `logs`.

    `count` is the number of runs in parallel, and `restarts` the number of restarts of a run after faults within an hour.
    """
    logs.mkdir(parents=True, exist_ok=True)

    def start(member: Member, slot: int) -> RunProcess:
        numbers = ["--ranks", str(member.ranks), "--restarts", str(restarts)]
        arguments = ["resume", str(member.folder.path), *numbers, *module_flags(member.config)]
        with os.fdopen(open_to_append(logs / f"{member.name}.log"), "ab") as log:
            return subprocess.Popen(
                module_command("lockstep", *arguments),
                env=module_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C on the terminal reaches only this process, which forwards it once
                preexec_fn=partial(_prepare_child, os.getpid(), _slot_cores(slot, count, member.ranks)),
            )

    return start


def last_log_line(logs: Path, member: Member) -> str:
    """Return the last non-empty line in the log of a run."""
    try:
        lines = read_file(logs / f"{member.name}.log", _LOG_LIMIT).decode(errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def _slot_cores(slot: int, jobs: int, ranks: int) -> list[int]:
    """Return the cores that the job in a slot is bound to; none if it is not bound.

    Engines such as envpool start one thread per allowed core, so jobs are bound if together they use all cores. If some cores stay free, jobs
    are not bound, because other programs may be bound to the same cores.
    """
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    fits = jobs * ranks <= len(cores) < (jobs + 1) * ranks
    return cores[slot * ranks : (slot + 1) * ranks] if fits else []


def _prepare_child(parent: int, cores: Sequence[int]) -> None:
    die_with_parent(parent)
    if cores:
        os.sched_setaffinity(0, cores)
