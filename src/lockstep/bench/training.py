"""Measurement of one training run, which is started as a separate process, as a user would start it."""

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
from lockstep.config.flags import module_flags
from lockstep.phases import PHASES
from lockstep.processes.children import ProcessFailed, child, module_command, module_environment
from lockstep.processes.exit_codes import DONE, STOPPED_BY_SIGNAL
from lockstep.run.folder import RunFolder
from lockstep.telemetry.status import number
from lockstep.telemetry.tail import MetricsTail

__all__ = ["Training", "default_warmup", "peaks", "prepared", "train"]

_MIN_ITERATIONS = 5
"""Smallest number of iterations of a run whose length is given in seconds."""
_ENDLESS = 10**7
_POLL_INTERVAL = 0.1
"""Seconds between two measurements of the memory."""


def default_warmup(iterations: int) -> int:
    """Return the number of iterations that are not counted while code and caches are loaded: a tenth, but at least 2."""
    return min(max(2, iterations // 10), iterations - 1)


@dataclass(frozen=True)
class Training:
    """Results of one training run."""

    rows: Sequence[Mapping[str, float]]
    """Metrics of every iteration."""
    first_update: float
    """Seconds from the start of the process to the end of the first iteration."""
    memory: Sequence[int]
    """Peak memory in bytes of every rank, including its child processes; 0 if the rank was never observed."""
    warmup: int | None = None
    """Iterations at the beginning that are not counted; None means `default_warmup`."""

    @property
    def uncounted(self) -> int:
        """Number of iterations at the beginning that are not counted."""
        return default_warmup(len(self.rows)) if self.warmup is None else self.warmup

    @property
    def counted(self) -> Sequence[Mapping[str, float]]:
        """Rows after the warm-up."""
        return self.rows[self.uncounted :]

    @property
    def steps(self) -> float:
        """Environment steps of the counted rows."""
        earlier = self.rows[self.uncounted - 1]["env_steps"] if self.uncounted else 0.0
        return self.rows[-1]["env_steps"] - earlier

    @property
    def seconds(self) -> float:
        """Duration of the counted rows in seconds."""
        return sum(row["t_iter"] for row in self.counted)

    @property
    def rate(self) -> float:
        """Environment steps per second over the counted rows."""
        return self.steps / self.seconds

    def phases(self, prefix: str = "t_") -> dict[str, float]:
        """Return the mean seconds per counted iteration, `iter` for the total, and by phase. Return {} without metrics with this prefix."""
        if f"{prefix}iter" not in self.counted[-1]:
            return {}
        count = len(self.counted)
        return {name: sum(row[f"{prefix}{name}"] for row in self.counted) / count for name in ("iter", *PHASES)}


@contextmanager
def prepared(
    config: Config, ranks: int, iterations: int | None, progress: str
) -> Iterator[tuple[list[str], RunFolder]]:
    """Yield the command that trains a resolved experiment, and its run folder. The folder is removed when the context exits.

    `iterations` None means that the run trains until it is stopped. The only checkpoint is saved at the end.
    """
    batch = config.env.count * config.rollout.steps
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", ignore_cleanup_errors=True) as temporary:
        run = dataclasses.replace(
            config.run,
            folder=temporary,
            name="measured",
            total_steps=batch * (iterations or _ENDLESS),
            checkpoint_every=_ENDLESS,
        )
        file = Path(temporary) / "config.json"
        file.write_text(json.dumps({"version": VERSION, **encode(dataclasses.replace(config, run=run))}))
        arguments: tuple[str, ...] = ("train", "--config", str(file), "--ranks", str(ranks), "--run.progress", progress)
        arguments += tuple(module_flags(config))
        yield module_command("lockstep", *arguments), RunFolder(Path(temporary) / "measured")


def train(
    config: Config,
    ranks: int,
    iterations: int | None = None,
    seconds: float = 0.0,
    *,
    goal: float | None = None,
    warmup: int | None = None,
    metrics_folder: Path | None = None,
) -> Training:
    """Train a resolved experiment on `ranks` processes, in a temporary folder, and measure it.

    `iterations`, at least 2, is the length of the run; None: it takes about `seconds` after the first iteration. With `goal`, it ends when
    the mean return of the last 20 episodes reaches this value or the budget is used up. `warmup` is the number of iterations at the
    beginning that are not counted; None: `default_warmup`. `metrics_folder` is a new folder that gets a copy of the metrics and the config.
    Raises ProcessFailed if the run fails or has too few iterations.
    """
    if goal is not None:
        iterations = config.run.total_steps // (config.env.count * config.rollout.steps)
    with prepared(config, ranks, iterations, "off") as (command, folder):
        with child(command, module_environment(), (DONE, STOPPED_BY_SIGNAL)) as process:
            first, memory = _watch(process, folder, ranks, seconds if iterations is None else None, goal)
        rows = [{name: value for name, value in row.items() if type(value) in (int, float)} for row in folder.metrics()]
        if metrics_folder is not None:
            metrics_folder.mkdir(parents=True)
            for name in ("metrics.jsonl", "config.json"):
                shutil.copyfile(folder.path / name, metrics_folder / name)
    required = (iterations or _MIN_ITERATIONS) if goal is None else 2
    if len(rows) < max(required, (warmup or 0) + 1):
        raise ProcessFailed(
            f"training ended after {len(rows)} iterations: at least {required} are required"
            if len(rows) < required
            else f"training ended after {len(rows)} iterations, of which {warmup} are warm-up; decrease --warmup"
        )
    return Training(rows, first, memory, warmup)  # type: ignore[arg-type]  # all values are numbers


def _watch(
    process: "subprocess.Popen[str]", folder: RunFolder, ranks: int, seconds: float | None, goal: float | None
) -> tuple[float, list[int]]:
    """Wait for the end of a run. Stop the run `seconds` after its first iteration, or when it reaches the `goal`.

    Return the seconds from the start to the end of the first iteration, and the peak memory of every rank in bytes.
    """
    metrics = folder.path / "metrics.jsonl"
    tail = MetricsTail(metrics)
    begun, first, checked, stopping = time.perf_counter(), 0.0, 0.0, False
    memory = [0] * ranks
    while process.poll() is None:
        now = time.perf_counter() - begun
        if not first and metrics.exists() and metrics.stat().st_size > 0:
            first = now
        if now - checked > _POLL_INTERVAL:
            checked = now
            memory = [max(pair) for pair in zip(memory, peaks(process.pid, ranks), strict=True)]
            late = seconds is not None and first and now - first > seconds
            returns = [number(row.get("return_mean_20")) for row in tail.read()[0]] if goal is not None else []
            solved = any(mean is not None and goal is not None and mean >= goal for mean in returns)
            if not stopping and (solved or (late and len(folder.metrics()) >= _MIN_ITERATIONS)):
                process.terminate()  # requests a clean stop after the current iteration
                stopping = True
        time.sleep(_POLL_INTERVAL if first else 0.01)
    return first or time.perf_counter() - begun, memory


def peaks(launcher: int, ranks: int) -> list[int]:
    """Return the peak memory in bytes of every rank so far, including its child processes. `launcher` is the process id of the launcher."""
    if ranks == 1:
        return [_peak(launcher)]
    memory = [0] * ranks
    for process in _children(launcher):
        rank = _rank_of(process)
        if rank is not None and rank < ranks:
            memory[rank] = _peak(process)
    return memory


def _peak(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    own_peak = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
    return own_peak + sum(map(_peak, _children(process)))


def _children(process: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{process}/task"):  # noqa: PTH208
            children += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    except OSError:
        pass
    return children


def _rank_of(process: int) -> int | None:
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((int(entry[14:]) for entry in variables if entry.startswith(b"LOCKSTEP_RANK=")), None)
