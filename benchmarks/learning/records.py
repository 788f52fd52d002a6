"""Results of single runs: one JSON file for each table, task and seed, `results/TABLE/TASK/SEED.json`, or `…/TASK/unfinished/SEED.json`."""

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
POINTS = 60
"""Maximum number of points of a stored learning curve."""
UNTIMED_HELP = "record no seconds, because other programs use the processor as well"

Record = dict[str, Any]


def result_path(results: Path, table: str, task: str, seed: int) -> Path:
    """Return the file of a run."""
    return results / table / task / f"{seed}.json"


def unfinished_path(results: Path, table: str, task: str, seed: int) -> Path:
    """Return the file of the first part of a run that is not finished."""
    return results / table / task / "unfinished" / f"{seed}.json"


def read_records(results: Path, table: str, task: str, unfinished: bool = False) -> list[Record]:
    """Return the results of all seeds, by ascending seed, or those of all runs that are not finished."""
    folder = results / table / task / ("unfinished" if unfinished else "")
    paths = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def write_record(path: Path, record: Mapping[str, object]) -> None:
    """Write a result: one line for each field. The file appears complete or not at all."""
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in record.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def untimed(record: Mapping[str, Any]) -> Record:
    """Return a record without what depends on the speed of the machine: such values are None."""
    times = dict.fromkeys(("seconds", "steps_per_second", "wall_seconds"))
    return {**record, **times, "thresholds": [{**item, "seconds": None} for item in record["thresholds"]]}


def thin_curve(points: Sequence[tuple[int, int, float]], count: int = POINTS) -> dict[str, list[float]]:
    """Merge the points of a learning curve into at most `count` intervals of equally many steps.

    Args:
        points: Environment steps so far, number of finished episodes and their mean return, by ascending steps.
        count: Number of intervals.

    Returns:
        `steps`: the last step of each interval in which episodes finished; `return_mean`: the mean return of these
        episodes.
    """
    intervals: dict[int, list[tuple[int, int, float]]] = {}
    total = points[-1][0] if points else 1
    for point in points:
        if point[1]:
            intervals.setdefault(min(count - 1, point[0] * count // total), []).append(point)
    steps: list[float] = []
    means: list[float] = []
    for _, interval in sorted(intervals.items()):
        steps.append(interval[-1][0])
        means.append(
            rounded(sum(number * mean for _, number, mean in interval) / sum(number for _, number, _ in interval))
        )
    return {"steps": steps, "return_mean": means}


def thresholds(points: Sequence[tuple[int, float, float | None]], returns: Sequence[float]) -> list[Record]:
    """Return steps and seconds after which the mean return of the last 20 training episodes first was at least a return.

    Args:
        points: Environment steps, seconds of training and this mean, by ascending steps.
        returns: The returns to reach.

    Returns:
        `return`, `steps` and `seconds` for each of `returns`; steps and seconds are None if it was never reached.
    """
    reached = {
        wanted: next((point for point in points if point[2] is not None and point[2] >= wanted), None)
        for wanted in sorted(set(returns))
    }
    return [
        {"return": wanted, "steps": point[0] if point else None, "seconds": round(point[1], 1) if point else None}
        for wanted, point in reached.items()
    ]


def summary(returns: Sequence[float]) -> dict[str, object]:
    """Return the statistics of an evaluation and the return of every episode, with six significant digits."""
    return {
        "episodes": len(returns),
        "mean": rounded(statistics.fmean(returns)),
        "std": rounded(statistics.stdev(returns)) if len(returns) > 1 else None,
        "min": rounded(min(returns)),
        "max": rounded(max(returns)),
        "returns": [rounded(value) for value in returns],
    }


def rounded(value: float) -> float:
    """Return a number with six significant digits."""
    return float(f"{value:.6g}")


def machine() -> dict[str, object]:
    """Return processor type, number of cores and Python version."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = models[0] if models else platform.processor() or platform.machine()
    return {"processor": processor, "cores": os.cpu_count(), "python": platform.python_version()}
