"""Evaluations during training: which checkpoints are evaluated, the file of their results, and the best checkpoint.

A sidecar process evaluates checkpoints and is the only writer while it runs. Rank 0 does not remove checkpoints that
wait for evaluation, and removes the results of iterations that a resumed run repeats.
"""

import json
import math
import os
from collections.abc import Mapping
from typing import Literal, NamedTuple

from lockstep.files import open_to_append, read_file, write_atomically
from lockstep.run.folder import RunFolder

__all__ = [
    "BEST",
    "EVALUATIONS",
    "Best",
    "Choice",
    "Evaluations",
    "best_checkpoint",
    "is_due",
    "read_best",
    "remove_evaluations_after",
]

EVALUATIONS = "evaluations.jsonl"
BEST = "best.json"
Choice = int | Literal["best"] | None
"""A checkpoint as users choose it: its iteration, the best one, or None for the newest."""


class Best(NamedTuple):
    """The checkpoint with the highest mean return of its evaluation; of several, the first."""

    iteration: int
    return_mean: float
    """Mean return with the most probable actions."""
    episodes: int


def read_best(folder: RunFolder) -> Best | None:
    """Return the content of `best.json`; None if there is no such file or it is broken."""
    try:
        content = json.loads(read_file(folder.path / BEST))
        return Best(int(content["iteration"]), float(content["return_mean"]), int(content["episodes"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def best_checkpoint(folder: RunFolder) -> int:
    """Return the iteration of the best checkpoint of a run.

    That is the one of `best.json`. Without evaluations during training, it is the kept checkpoint with the highest `return_mean_20`; of
    several, the last. Raises ValueError if no checkpoint has either.
    """
    checkpoints, best = folder.checkpoints(), read_best(folder)
    if best is not None and best.iteration in checkpoints:
        return best.iteration
    rows = [row for row in folder.readable_metrics() if row["iteration"] in checkpoints]
    returns = [
        (mean, int(str(row["iteration"]))) for row in rows if (mean := _number(row.get("return_mean_20"))) is not None
    ]
    if not returns:
        raise ValueError(
            f"{folder} has no best checkpoint: there is no evaluation, and no checkpoint was written after 20 episodes had ended"
        )
    return max(returns)[1]


def is_due(iteration: int, every: int | None, last: int) -> bool:
    """Return True if the agent of an iteration is evaluated. `every` is `run.evaluate_every`, `last` the last iteration of the run."""
    return every is not None and (iteration % every == 0 or iteration == last)


class Evaluations:
    """Evaluations of a run."""

    def __init__(self, folder: RunFolder, every: int, last: int) -> None:
        """Open the evaluations of a run folder, which need not have any. The other arguments are those of `is_due`."""
        self._folder = folder
        self._every = every
        self._last = last

    def pending(self) -> list[int]:
        """Return the iterations of checkpoints that wait for evaluation, ascending: all after the newest evaluation."""
        rows = self._folder.evaluations()
        newest = int(str(rows[-1]["iteration"])) if rows else 0
        checkpoints = self._folder.checkpoints()
        last = self._last
        if checkpoints and self._folder.training_ended(checkpoints[-1]):  # perhaps before the budget was used up
            last = checkpoints[-1]
        return [number for number in checkpoints if number > newest and is_due(number, self._every, last)]

    def append(self, row: Mapping[str, object]) -> None:
        """Append the result of an evaluation, with `iteration`, `return_mean` and `episodes`, and update the best checkpoint."""
        result, best = _ranking(row), read_best(self._folder)
        # Update best.json first: once an iteration has its line, only best.json prevents the removal of its checkpoint.
        if best is None or result.return_mean > best.return_mean:
            _write_best(self._folder, result)
        line = open_to_append(self._folder.path / EVALUATIONS)
        try:
            os.write(line, f"{json.dumps(row)}\n".encode())  # in one call, so that readers never see a part of it
            os.fsync(line)
        finally:
            os.close(line)


def remove_evaluations_after(folder: RunFolder, iteration: int) -> None:
    """Remove the results of iterations after `iteration`, whose checkpoints were removed, and choose the best of the remaining ones."""
    folder.truncate_rows(EVALUATIONS, iteration)
    best = read_best(folder)
    if best is None or best.iteration <= iteration:
        return
    checkpoints = set(folder.checkpoints())
    rows = [row for row in folder.evaluations() if {"return_mean", "episodes"} <= row.keys()]
    remaining = [result for row in rows if (result := _ranking(row)).iteration in checkpoints]
    if remaining:
        _write_best(folder, max(remaining, key=lambda result: result.return_mean))
    else:
        (folder.path / BEST).unlink()


def _number(value: object) -> float | None:
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _ranking(row: Mapping[str, object]) -> Best:
    return Best(int(str(row["iteration"])), float(str(row["return_mean"])), int(str(row["episodes"])))


def _write_best(folder: RunFolder, best: Best) -> None:
    write_atomically(folder.path / BEST, f"{json.dumps(best._asdict())}\n".encode())
