"""Speeds of different programs that do the same work, seen from outside: by the marks that they print."""

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from lockstep.bench.repeats import DISTURBED, Spread, ratios, spread
from lockstep.bench.training import PHASES, prepared
from lockstep.bench.workloads import PEERS, Peer, Work
from lockstep.config import Config
from lockstep.processes.children import ProcessFailed, child, module_environment

__all__ = ["SKIPPED", "Finish", "Found", "find_peers", "marked", "record", "table", "trained"]

SKIPPED = 4096
"""Environment steps before the rate counts, in which code and caches are loaded."""
_MARK = re.compile(r"^steps (\d+)$")
_PROBE = (
    "import json, sys, importlib.util as u, importlib.metadata as m; "
    "print(json.dumps({w: m.version(w) for w in sys.argv[1:] if u.find_spec(w)}))"
)
_PATIENCE = 60.0

Mark = tuple[float, int]
"""Seconds since the process was started, and environment steps."""


@dataclass(frozen=True)
class Found:
    """A peer that can be run."""

    peer: Peer
    interpreter: str
    version: str


@dataclass(frozen=True)
class Finish:
    """What one run of a program showed."""

    rate: float
    """Environment steps per second, between the first mark from `SKIPPED` steps on and the last."""
    seconds: float
    """From the start of the process to its end."""
    first_update: float
    """From the start of the process to the first mark."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Of lockstep, mean milliseconds of an iteration that counts, `iter` for the whole, and by phase; of other programs nothing."""


def find_peers(interpreters: Sequence[str], work: Work) -> tuple[list[Found], list[Peer]]:
    """The peers for a work that one of the `interpreters` has, taken from the first that does, and those that none has.

    Raises ValueError for what is no interpreter of Python.
    """
    found: dict[str, Found] = {}
    peers = [peer for peer in PEERS if peer.remembers == bool(work.memory)]
    for interpreter in interpreters:
        try:
            command = [interpreter, "-c", _PROBE, *(peer.module for peer in peers)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True)
            versions = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            raise ValueError(f"--python is {interpreter!r}: it must be an interpreter of Python 3") from None
        for peer in peers:
            if peer.module in versions and peer.name not in found:
                found[peer.name] = Found(peer, interpreter, str(versions[peer.module]))
    return list(found.values()), [peer for peer in peers if peer.name not in found]


def marked(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Finish:
    """Runs a program that prints `steps N` after every update, on one thread. Raises ProcessFailed."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    variables = {**(os.environ if environment is None else environment), **threads, "PYTHONUNBUFFERED": "1"}
    begun = time.perf_counter()
    marks: list[Mark] = []
    with child(command, variables) as process:
        assert process.stdout is not None
        for line in process.stdout:
            mark = _MARK.match(line)
            if mark:
                marks.append((time.perf_counter() - begun, int(mark[1])))
    seconds = time.perf_counter() - begun
    if len(_counted(marks)) < 2:
        raise ProcessFailed(f"{' '.join(command)} showed no two updates after {SKIPPED} steps; give it more --updates")
    return Finish(_rate(marks), seconds, marks[0][0])


def _counted(marks: Sequence[Mark]) -> list[Mark]:
    return [mark for mark in marks if mark[1] >= SKIPPED]


def _rate(marks: Sequence[Mark]) -> float:
    (begun, before), *_, (ended, after) = _counted(marks)
    return (after - before) / (ended - begun)


def trained(config: Config, ranks: int, updates: int) -> Finish:
    """Runs lockstep with a resolved config. Raises ProcessFailed.

    Its marks are from the run's metrics: what it prints, it prints for several updates at once.
    """
    begun = time.perf_counter()
    with prepared(config, ranks, updates, "off") as (command, folder):
        with child(command, module_environment()):
            pass  # waits for its end
        seconds, rows = time.perf_counter() - begun, folder.metrics()
    marks = [(float(str(row["seconds"])), int(str(row["env_steps"]))) for row in rows]
    counted = rows[len(marks) - len(_counted(marks)) + 1 :]
    if len(_counted(marks)) < 2:
        raise ProcessFailed(f"lockstep showed no two updates after {SKIPPED} steps; give it more --updates")
    phases = {
        name: 1e3 * sum(float(str(row[f"t_{name}"])) for row in counted) / len(counted) for name in ("iter", *PHASES)
    }
    return Finish(_rate(marks), seconds, seconds - marks[-1][0] + marks[0][0], phases)


def record(finishes: Mapping[str, Sequence[Finish]], first: str) -> dict[str, object]:
    """All of it as JSON, with the ratios of `first` to the others."""
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


def table(finishes: Mapping[str, Sequence[Finish]], first: str) -> list[str]:
    """Lines of at most 80 columns. The ratios say how many times as fast `first` is."""
    lines = [f"{'':<24}{'steps/s':>9}{'range':>17}{'process':>10}{'ratio':>8}{'range':>12}"]
    for name, runs in finishes.items():
        rate, whole = spread(_rates(runs)), spread([run.seconds for run in runs])
        line = f"{name:<24}{rate.median:>9,.0f}{f'{rate.least:,.0f}-{rate.most:,.0f}':>17}{whole.median:>8.1f} s"
        if name != first:
            ratio = _faster(finishes, first, name)
            line += f"{ratio.median:>8.2f}{f'{ratio.least:.2f}-{ratio.most:.2f}':>12}"
        lines.append(line)
    lines += ["", f"process: from its start to its end. ratio: steps/s of {first} to these."]
    widest = max(spread(_rates(runs)).range for runs in finishes.values())
    if widest > DISTURBED:
        lines += ["", f"note: repeats differ by {widest:.0%}; something else was running, or they were too short"]
    return lines


def _rates(runs: Sequence[Finish]) -> list[float]:
    return [run.rate for run in runs]


def _faster(finishes: Mapping[str, Sequence[Finish]], first: str, other: str) -> Spread:
    return ratios(_rates(finishes[first]), _rates(finishes[other]))
