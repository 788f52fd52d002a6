"""Several runs at once, each a process of `lockstep resume`: it begins a run that has no checkpoint yet, and goes on with one that has."""

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lockstep.processes.children import module_command, module_environment
from lockstep.processes.exit_codes import PREEMPTED
from lockstep.processes.parent import die_with_parent
from lockstep.run.stop import asked_to_stop
from lockstep.sweep.member import Member

__all__ = ["Jobs", "last_words"]

_EACH = 0.05
"""Seconds between looks."""


@dataclass(frozen=True)
class Jobs:
    """How many runs go on at once, and where they say what they have to say."""

    count: int
    logs: Path
    told: Callable[[Member, int], None]
    """Is given every run that ended, and its exit code."""

    def carry(self, members: Sequence[Member]) -> dict[str, int]:
        """Carries all of them, and gives exit codes by name; of those that were not begun, because somebody asked to stop, none.

        A request to stop is passed on once: every run ends after its iteration and leaves a checkpoint.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        waiting, codes = deque(members), dict[str, int]()
        running: dict[int, tuple[Member, subprocess.Popen[bytes]]] = {}
        asked = False
        try:
            while waiting or running:
                if asked_to_stop() and not asked:
                    asked = True
                    waiting.clear()
                    for _, process in running.values():
                        process.terminate()
                for place in range(self.count):
                    if waiting and place not in running:
                        member = waiting.popleft()
                        running[place] = member, self._start(member, place)
                for place, (member, process) in list(running.items()):
                    code = process.poll()
                    if code is not None:
                        del running[place]
                        # one that was not listening yet has been ended by the request itself
                        codes[member.name] = PREEMPTED if asked and code == -signal.SIGTERM else code
                        self.told(member, codes[member.name])
                time.sleep(_EACH)
        finally:
            for _, process in running.values():
                process.kill()
                process.wait()
        return codes

    def _start(self, member: Member, place: int) -> "subprocess.Popen[bytes]":
        words = ["resume", str(member.folder.path), "--ranks", str(member.ranks)]
        module = member.config.env.module
        if module is not None:
            words += ["--env.module", module]
        with (self.logs / f"{member.name}.log").open("ab") as log:
            return subprocess.Popen(
                module_command("lockstep", *words),
                env=module_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C reaches only this process, which passes it on once
                preexec_fn=partial(_settle_down, os.getpid(), _cores_of(place, self.count, member.ranks)),
            )


def last_words(logs: Path, member: Member) -> str:
    """The last line that a run has said."""
    try:
        lines = (logs / f"{member.name}.log").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _cores_of(place: int, jobs: int, ranks: int) -> list[int]:
    """Cores for the job in a place, where jobs take all of them; empty: any.

    Engines with threads of their own, such as envpool, take as many as they are allowed cores. Where jobs leave some free, nobody is bound:
    other programs may be bound to the same ones.
    """
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    fits = jobs * ranks <= len(cores) < (jobs + 1) * ranks
    return cores[place * ranks : (place + 1) * ranks] if fits else []


def _settle_down(parent: int, cores: Sequence[int]) -> None:
    die_with_parent(parent)
    if cores:
        os.sched_setaffinity(0, cores)
