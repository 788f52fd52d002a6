"""Results of a table as numbers for the page and the figures."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from aggregate import Estimate, balanced, estimate, normalized
from records import Record, read_records
from tasks import Table, Task

POOLED_SEEDS = 3
"""Smallest number of seeds of each task with which scores of all tasks are summarized in one number."""
RANDOM_SCORES = Path(__file__).parent / "random_scores.json"


@dataclass(frozen=True)
class Runs:
    """All runs of a program on one task."""

    task: Task
    records: Sequence[Record]
    random_score: float

    def scores(self, kind: str = "deterministic") -> list[float]:
        """Mean returns of the evaluations after training, one for each seed. `kind` is `deterministic` or `sampled`."""
        return [record["evaluation"][kind]["mean"] for record in self.records]

    @cached_property
    def normalized(self) -> list[float]:
        """Deterministic scores on the scale on which random actions have 0 and the bar is 1."""
        return [normalized(score, self.random_score, self.task.bar) for score in self.scores()]

    @cached_property
    def estimate(self) -> Estimate:
        """Interquartile mean of the deterministic scores."""
        return estimate([self.scores()])

    @cached_property
    def steps_to_threshold(self) -> list[float]:
        """Environment steps until a run reached the wanted return, for each run; infinite if it never did."""
        thresholds = [
            next(item for item in record["thresholds"] if math.isclose(item["return"], self.task.wanted))
            for record in self.records
        ]
        return [math.inf if item["steps"] is None else item["steps"] for item in thresholds]


@dataclass(frozen=True)
class TableResults:
    """Runs of a table that are stored, by task, of lockstep and of Stable-Baselines3."""

    table: Table
    lockstep: dict[str, Runs]
    sb3: dict[str, Runs]
    unfinished: dict[str, Runs]
    """Runs of lockstep that are not finished, for tasks without a result."""

    def pooled(self, program: str) -> list[list[float]]:
        """Return the normalized scores of all tasks, equally many for each, or nothing if a task has fewer than `POOLED_SEEDS` runs."""
        runs = getattr(self, program)
        if min((len(runs[name].records) if name in runs else 0) for name in self.table.tasks) < POOLED_SEEDS:
            return []
        return balanced([runs[name].normalized for name in self.table.tasks])


def counted(table: Table, found: dict[str, Sequence[Record]]) -> dict[str, Sequence[Record]]:
    """Return the runs of each task that the page reports, without tasks that have none.

    These are the runs of all seeds, once all are there. Before that they are the runs of the seeds that all unfinished tasks have, so that a table
    which is written while runs are missing does not have more runs of one task than of another.
    """
    unfinished = [len(records) for name, records in found.items() if 0 < len(records) < table.tasks[name].seeds]
    return {
        name: records if len(records) >= table.tasks[name].seeds else records[: min(unfinished)]
        for name, records in found.items()
        if records
    }


def read_results(table: Table, results: Path) -> TableResults:
    """Read the stored runs of a table. Raises ValueError if an environment has no random score yet."""
    random_scores = json.loads(RANDOM_SCORES.read_text())

    for task in table.tasks.values():
        if task.environment not in random_scores:
            raise ValueError(f"{task.environment} has no random score: run random_scores.py first")

    def runs_of(name: str, records: Sequence[Record]) -> Runs:
        return Runs(table.tasks[name], records, random_scores[table.tasks[name].environment]["mean"])

    def runs(folders: Sequence[str]) -> dict[str, Runs]:
        found = {
            name: next(filter(None, (read_records(results, folder, name) for folder in folders)), [])
            for name in table.tasks
        }
        return {name: runs_of(name, records) for name, records in counted(table, found).items()}

    lockstep = runs([table.name])
    unfinished = {
        name: runs_of(name, records)
        for name in table.tasks
        if name not in lockstep and (records := read_records(results, table.name, name, unfinished=True))
    }
    return TableResults(table, lockstep, runs([f"{table.name}-sb3", f"{table.baseline}-sb3"]), unfinished)


def compared(results: Sequence[TableResults]) -> dict[str, tuple[Runs, Runs]]:
    """Return the runs of lockstep and of Stable-Baselines3 by task, for the tasks of all tables that both have trained."""
    return {
        name: (table.lockstep[name], table.sb3[name])
        for table in results
        for name in table.lockstep
        if name in table.sb3
    }
