"""Comparison of the speed of different programs on the same workload. A program reports its progress by printing `steps N`."""

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from lockstep.bench.repeats import Spread, disturbance_note, ratios, spread
from lockstep.bench.training import prepared
from lockstep.bench.workloads import PEERS, Peer, Workload
from lockstep.config import Config
from lockstep.phases import PHASES
from lockstep.processes.children import ProcessFailed, child, module_environment

__all__ = [
    "SKIPPED",
    "InstalledPeer",
    "ProgramTiming",
    "find_peers",
    "record",
    "table",
    "time_lockstep",
    "time_program",
]

SKIPPED = 4096
"""Environment steps at the beginning that are not timed, because code and caches are being loaded."""
_MARK = re.compile(r"^steps (\d+)$")
_PROBE = (
    "import json, sys, importlib.util as u, importlib.metadata as m; "
    "print(json.dumps({w: m.version(w) for w in sys.argv[1:] if u.find_spec(w)}))"
)
_PROBE_TIMEOUT = 60.0
"""Seconds that an interpreter has to list its packages."""

ProgressMark = tuple[float, int]
"""Progress of a program: seconds since the process was started, and environment steps."""


@dataclass(frozen=True)
class InstalledPeer:
    """Peer that is installed, with the interpreter that has it."""

    peer: Peer
    interpreter: str
    version: str


@dataclass(frozen=True)
class ProgramTiming:
    """Times of one run of a program."""

    rate: float
    """Environment steps per second between the first mark with at least `SKIPPED` steps and the last mark."""
    seconds: float
    """Seconds from the start of the process to its end."""
    first_update: float
    """Seconds from the start of the process to its first mark."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Mean milliseconds per timed iteration, `iter` for the total, and by phase; empty for programs other than lockstep."""


def find_peers(interpreters: Sequence[str], workload: Workload) -> tuple[list[InstalledPeer], list[Peer]]:
    """Find the peers that can run the workload. Return the installed ones and the missing ones.

    A peer runs with the first of the `interpreters` that has its package. Raises ValueError if one of `interpreters` is
    not a Python interpreter.
    """
    installed: dict[str, InstalledPeer] = {}
    peers = [peer for peer in PEERS if peer.recurrent == bool(workload.memory)]
    for interpreter in interpreters:
        try:
            command = [interpreter, "-c", _PROBE, *(peer.module for peer in peers)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT, check=True)
            versions = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            raise ValueError(f"--python is {interpreter!r}: it must be a Python 3 interpreter") from None
        for peer in peers:
            if peer.module in versions and peer.name not in installed:
                installed[peer.name] = InstalledPeer(peer, interpreter, str(versions[peer.module]))
    return list(installed.values()), [peer for peer in peers if peer.name not in installed]


def time_program(command: Sequence[str]) -> ProgramTiming:
    """Run and time a program that prints `steps N` after every update, on one thread. Raises ProcessFailed if the program fails."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    begun = time.perf_counter()
    marks: list[ProgressMark] = []
    with child(command, variables) as process:
        assert process.stdout is not None
        for line in process.stdout:
            mark = _MARK.match(line)
            if mark:
                marks.append((time.perf_counter() - begun, int(mark[1])))
    seconds = time.perf_counter() - begun
    if len(_counted(marks)) < 2:
        raise ProcessFailed(f"{' '.join(command)} made fewer than 2 updates after {SKIPPED} steps; increase --updates")
    return ProgramTiming(_rate(marks), seconds, marks[0][0])


def _counted(marks: Sequence[ProgressMark]) -> list[ProgressMark]:
    return [mark for mark in marks if mark[1] >= SKIPPED]


def _rate(marks: Sequence[ProgressMark]) -> float:
    (start, first_steps), *_, (end, last_steps) = _counted(marks)
    return (last_steps - first_steps) / (end - start)


def time_lockstep(config: Config, ranks: int, updates: int) -> ProgramTiming:
    """Run and time lockstep with a resolved config. Raises ProcessFailed if the run fails."""
    begun = time.perf_counter()
    with prepared(config, ranks, updates, "off") as (command, folder):
        with child(command, module_environment()):
            pass  # leaving the block waits for the end of the process
        seconds, rows = time.perf_counter() - begun, folder.metrics()
    marks = [(float(str(row["seconds"])), int(str(row["env_steps"]))) for row in rows]
    counted = rows[len(marks) - len(_counted(marks)) + 1 :]
    if len(_counted(marks)) < 2:
        raise ProcessFailed(f"lockstep made fewer than 2 updates after {SKIPPED} steps; increase --updates")
    phases = {
        name: 1e3 * sum(float(str(row[f"t_{name}"])) for row in counted) / len(counted) for name in ("iter", *PHASES)
    }
    return ProgramTiming(_rate(marks), seconds, seconds - marks[-1][0] + marks[0][0], phases)


def record(finishes: Mapping[str, Sequence[ProgramTiming]], first: str) -> dict[str, object]:
    """Return all times as JSON data, with the ratio of the speed of `first` to that of every other program."""
    return {
        name: {
            "steps_per_second": asdict(spread(_rates(runs))),
            "process_seconds": asdict(spread([run.seconds for run in runs])),
            "first_update_seconds": asdict(spread([run.first_update for run in runs])),
            **({} if name == first else {"faster": asdict(_faster(finishes, first, name))}),
            "repeats": [asdict(run) for run in runs],
        }
        for name, runs in finishes.items()
    }


def table(finishes: Mapping[str, Sequence[ProgramTiming]], first: str) -> list[str]:
    """Format the times as lines of at most 80 columns. The ratio is the speed of `first` divided by that of the program of the line."""
    lines = [f"{'':<24}{'steps/s':>9}{'range':>17}{'process':>10}{'ratio':>8}{'range':>12}"]
    for name, runs in finishes.items():
        rate, process = spread(_rates(runs)), spread([run.seconds for run in runs])
        line = f"{name:<24}{rate.median:>9,.0f}{f'{rate.least:,.0f}-{rate.most:,.0f}':>17}{process.median:>8.1f} s"
        if name != first:
            ratio = _faster(finishes, first, name)
            line += f"{ratio.median:>8.2f}{f'{ratio.least:.2f}-{ratio.most:.2f}':>12}"
        lines.append(line)
    lines += ["", f"process: its total time. ratio: steps/s of {first} divided by these."]
    widest = max(spread(_rates(runs)).range for runs in finishes.values())
    return [*lines, *disturbance_note(widest)]


def _rates(runs: Sequence[ProgramTiming]) -> list[float]:
    return [run.rate for run in runs]


def _faster(finishes: Mapping[str, Sequence[ProgramTiming]], first: str, other: str) -> Spread:
    return ratios(_rates(finishes[first]), _rates(finishes[other]))
