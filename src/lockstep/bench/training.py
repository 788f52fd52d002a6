"""One training run as a process of its own, as a user would start it, and what it showed."""

import dataclasses
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep.config import VERSION, Config
from lockstep.config.decode import encode
from lockstep.processes.children import ProcessFailed, child, module_command, module_environment
from lockstep.processes.exit_codes import DONE, PREEMPTED
from lockstep.run.folder import RunFolder

__all__ = ["PHASES", "Training", "peaks", "prepared", "train", "warmup"]

PHASES = ("rollout", "learn", "sync", "wait", "publish", "record")
"""What an iteration's time is made of."""
_LEAST = 5
"""Iterations of a run that is bounded by time."""
_ENDLESS = 10**7
_EACH = 0.1
"""Seconds between looks at the memory."""


def warmup(iterations: int) -> int:
    """How many iterations of a run don't count, in which code and caches are loaded."""
    return min(max(2, iterations // 10), iterations - 1)


@dataclass(frozen=True)
class Training:
    """What one run showed."""

    rows: Sequence[Mapping[str, float]]
    """The metrics of every iteration."""
    first_update: float
    """Seconds from the start of the process to the end of the first iteration."""
    memory: Sequence[int]
    """Per rank, the most bytes that it, with the processes that it started, had in memory; 0 where that was not seen."""
    left_out: int | None = None
    """Iterations at its beginning that don't count; None: those of `warmup`."""

    @property
    def uncounted(self) -> int:
        """Iterations at its beginning that don't count."""
        return warmup(len(self.rows)) if self.left_out is None else self.left_out

    @property
    def counted(self) -> Sequence[Mapping[str, float]]:
        """The rows after the warm-up."""
        return self.rows[self.uncounted :]

    @property
    def steps(self) -> float:
        """Environment steps of the rows that count."""
        before = self.rows[self.uncounted - 1]["env_steps"] if self.uncounted else 0.0
        return self.rows[-1]["env_steps"] - before

    @property
    def seconds(self) -> float:
        """Of the rows that count."""
        return sum(row["t_iter"] for row in self.counted)

    @property
    def rate(self) -> float:
        """Environment steps per second."""
        return self.steps / self.seconds

    def phases(self, prefix: str = "t_") -> dict[str, float]:
        """Mean seconds per iteration, `iter` for the whole, and by phase; empty where the metrics have none with this prefix."""
        if f"{prefix}iter" not in self.counted[-1]:
            return {}
        count = len(self.counted)
        return {name: sum(row[f"{prefix}{name}"] for row in self.counted) / count for name in ("iter", *PHASES)}


@contextmanager
def prepared(
    config: Config, ranks: int, iterations: int | None, progress: str
) -> Iterator[tuple[list[str], RunFolder]]:
    """The command that trains a resolved experiment, and the folder of its run, which is removed at the end of the block.

    None: it goes on until it is told to stop. No checkpoint is left before its end.
    """
    batch = config.env.count * config.rollout.steps
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", ignore_cleanup_errors=True) as place:
        run = dataclasses.replace(
            config.run,
            folder=place,
            name="measured",
            total_steps=batch * (iterations or _ENDLESS),
            checkpoint_every=_ENDLESS,
        )
        file = Path(place) / "config.json"
        file.write_text(json.dumps({"version": VERSION, **encode(dataclasses.replace(config, run=run))}))
        words: tuple[str, ...] = ("train", "--config", str(file), "--ranks", str(ranks), "--run.progress", progress)
        if config.env.module:
            words += ("--env.module", config.env.module)
        yield module_command("lockstep", *words), RunFolder(Path(place) / "measured")


def train(
    config: Config,
    ranks: int,
    iterations: int | None = None,
    seconds: float = 0.0,
    *,
    goal: float | None = None,
    left_out: int | None = None,
    keep: Path | None = None,
) -> Training:
    """Trains a resolved experiment on `ranks` processes, in a folder of its own.

    It goes on for a number of `iterations`, at least 2, or for about so many `seconds` after the first of them; with a `goal`, until the
    mean return of the last 20 episodes is that high or its budget is spent. `keep`: a new folder, which gets its metrics and its config.
    Raises ProcessFailed.
    """
    if goal is not None:
        iterations = config.run.total_steps // (config.env.count * config.rollout.steps)
    with prepared(config, ranks, iterations, "off") as (command, folder):
        with child(command, module_environment(), (DONE, PREEMPTED)) as process:
            first, memory = _watch(process, folder, ranks, seconds if iterations is None else None, goal)
        rows = [{name: value for name, value in row.items() if _is_number(value)} for row in folder.metrics()]
        if keep is not None:
            keep.mkdir(parents=True)
            for name in ("metrics.jsonl", "config.json"):
                shutil.copyfile(folder.path / name, keep / name)
    least = (iterations or _LEAST) if goal is None else 2
    if len(rows) < max(least, (left_out or 0) + 1):
        raise ProcessFailed(
            f"training ended after {len(rows)} iterations, of {least}"
            if len(rows) < least
            else f"training ended after {len(rows)} iterations, of which {left_out} are warm-up; give a smaller --warmup"
        )
    return Training(rows, first, memory, left_out)  # type: ignore[arg-type]  # numbers alone are left


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _watch(
    process: "subprocess.Popen[str]", folder: RunFolder, ranks: int, seconds: float | None, goal: float | None
) -> tuple[float, list[int]]:
    """Seconds to the first iteration's end, and the peaks of memory. Stops the run after `seconds` from there, or at the `goal`."""
    metrics = _Growing(folder.path / "metrics.jsonl")
    begun, first, looked, asked = time.perf_counter(), 0.0, 0.0, False
    memory = [0] * ranks
    while process.poll() is None:
        now = time.perf_counter() - begun
        if not first and metrics.begun():
            first = now
        if now - looked > _EACH:
            looked = now
            memory = [max(pair) for pair in zip(memory, peaks(process.pid, ranks), strict=True)]
            late = seconds is not None and first and now - first > seconds
            enough = goal is not None and metrics.reaches(goal)
            if not asked and (enough or (late and len(folder.metrics()) >= _LEAST)):
                process.terminate()  # asks for a clean stop after the iteration
                asked = True
        time.sleep(_EACH if first else 0.01)
    return first or time.perf_counter() - begun, memory


class _Growing:
    """A metrics.jsonl that grows. Every line is read once: runs of a million lines would else slow down those who are watched."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def begun(self) -> bool:
        return self._path.exists() and self._path.stat().st_size > 0

    def reaches(self, goal: float) -> bool:
        """Whether a line that is new since this was last asked has a mean return as high."""
        if not self._path.exists():
            return False
        with self._path.open("rb") as file:
            file.seek(self._read)
            lines = file.read().rpartition(b"\n")[0].splitlines(keepends=True)
        self._read += sum(map(len, lines)) + bool(lines)
        returns = (json.loads(line).get("return_mean_20") for line in lines)
        return any(mean is not None and mean >= goal for mean in returns)


def peaks(launcher: int, ranks: int) -> list[int]:
    """Bytes per rank, so far: the peaks of its process and of those that it started."""
    if ranks == 1:
        return [_peak(launcher)]
    found = [0] * ranks
    for process in _children(launcher):
        rank = _rank_of(process)
        if rank is not None and rank < ranks:
            found[rank] = _peak(process)
    return found


def _peak(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    own_peak = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
    return own_peak + sum(map(_peak, _children(process)))


def _children(process: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{process}/task"):  # noqa: PTH208
            found += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    except OSError:
        pass
    return found


def _rank_of(process: int) -> int | None:
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((int(entry[14:]) for entry in variables if entry.startswith(b"LOCKSTEP_RANK=")), None)
