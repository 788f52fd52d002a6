"""Curves of a run, read from its metrics while they grow, in bounded memory."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.telemetry.status import number
from lockstep.telemetry.tail import MetricsTail

__all__ = ["POINTS", "Curves", "CurvesFile", "Position"]

POINTS = 500
"""Largest number of points of a curve: about one per pixel of a panel."""
_AXES = ("iteration", "env_steps", "seconds")
_MAX_METRICS = 128
"""Largest number of metrics of a run; further ones are left out."""
_MAX_NAME = 80
"""Largest length of the name of a metric; those with longer names are left out."""
_BLOCK = 2**22
"""Bytes per read: some 5,000 lines, which take 0.1 s."""
_DIGITS = 6
"""Significant digits of the values that are sent."""
_generations = itertools.count(1)

Array = NDArray[np.float64]


class Position(NamedTuple):
    """Part of some curves that a reader has: the first `points` of generation `generation`, with `size` rows per point."""

    generation: int = 0
    size: int = 0
    points: int = 0


class Curves:
    """Metrics of a run over its iterations.

    Every point is the mean, the minimum and the maximum of `size` consecutive rows. When there are `POINTS` of them,
    neighbors are merged, and `size` doubles. So memory is bounded, and all points but the last one are final until then.
    """

    def __init__(self) -> None:
        self.generation = next(_generations)
        self.size = 1
        """Rows per point."""
        self.rows = 0
        self.skipped = 0
        """Number of rows that have no iteration, or none after that of the row before."""
        self._last = -1.0
        self._columns: dict[str, int] = {}
        self._axes = np.full((POINTS, len(_AXES)), np.nan)
        self._counts = np.zeros((POINTS, _MAX_METRICS))
        self._sums = np.zeros((POINTS, _MAX_METRICS))
        self._lows = np.full((POINTS, _MAX_METRICS), np.nan)
        self._highs = np.full((POINTS, _MAX_METRICS), np.nan)

    def append(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Add rows of metrics.jsonl or evaluations.jsonl. Values that are not finite numbers count as missing."""
        ascending = [row for row in rows if self._accept_row(row)]
        if not ascending:
            return
        axes = np.array([[number(row.get(name)) for name in _AXES] for row in ascending], dtype=np.float64)
        table = self._table(ascending)
        while (self.rows + len(table) - 1) // self.size >= POINTS:
            self._halve()
        points = (self.rows + np.arange(len(table))) // self.size
        self.rows += len(table)
        starts = np.flatnonzero(np.diff(points, prepend=-1))
        points, present = points[starts], ~np.isnan(table)
        self._axes[points] = axes[np.append(starts[1:], len(table)) - 1]
        with np.errstate(over="ignore", invalid="ignore"):
            self._counts[points] += np.add.reduceat(present, starts, dtype=np.float64)
            self._sums[points] += np.add.reduceat(np.where(present, table, 0.0), starts)
        self._lows[points] = np.fmin(self._lows[points], np.fmin.reduceat(table, starts))
        self._highs[points] = np.fmax(self._highs[points], np.fmax.reduceat(table, starts))

    def since(self, position: Position) -> dict[str, object]:
        """Return the points that a reader at `position` does not have, as a tree for JSON. None stands for a missing value.

        `from` is the index of the first point, and `position` what the reader has afterwards. `low` and `high` are left
        out while every point is one row.
        """
        end, complete = -(-self.rows // self.size), self.rows // self.size
        known = position.generation == self.generation and position.size == self.size
        start = min(max(position.points, 0), complete) if known else 0
        part = slice(start, end)
        with np.errstate(invalid="ignore"):
            means = self._sums[part] / self._counts[part]
        values = (
            {"mean": means} if self.size == 1 else {"mean": means, "low": self._lows[part], "high": self._highs[part]}
        )
        return {
            "position": [self.generation, self.size, complete],
            "from": start,
            "axes": {name: _plain(self._axes[part, column], 12) for column, name in enumerate(_AXES)},
            "metrics": {
                name: {kind: _plain(table[:, column], _DIGITS) for kind, table in values.items()}
                for name, column in self._columns.items()
            },
        }

    def _accept_row(self, row: Mapping[str, object]) -> bool:
        iteration = number(row.get("iteration"))
        if iteration is None or iteration <= self._last:
            self.skipped += 1
            return False
        self._last = iteration
        return True

    def _table(self, rows: Sequence[Mapping[str, object]]) -> Array:
        table = np.full((len(rows), _MAX_METRICS), np.nan)
        for index, row in enumerate(rows):
            for name, value in row.items():
                if name in _AXES:
                    continue
                measured = _mean(value) if isinstance(value, list) else number(value)
                if measured is not None and (column := self._column(name)) is not None:
                    table[index, column] = measured
        return table

    def _column(self, name: str) -> int | None:
        if name not in self._columns and len(self._columns) < _MAX_METRICS and len(name) <= _MAX_NAME:
            self._columns[name] = len(self._columns)
        return self._columns.get(name)

    def _halve(self) -> None:
        """Merge neighbors: two points of `size` rows each become one."""
        half = POINTS // 2
        axes = self._axes.reshape(half, 2, -1)
        # the last point may have no neighbor yet
        self._axes[:half] = np.where(np.isnan(axes[:, 1]), axes[:, 0], axes[:, 1])
        merges = (
            (self._counts, np.add, 0),
            (self._sums, np.add, 0),
            (self._lows, np.fmin, np.nan),
            (self._highs, np.fmax, np.nan),
        )
        for table, merge, empty in merges:
            with np.errstate(over="ignore", invalid="ignore"):
                table[:half] = merge.reduce(table.reshape(half, 2, -1), axis=1)
            table[half:] = empty
        self._axes[half:] = np.nan
        self.size *= 2


class CurvesFile:
    """Curves of one file of a run, `metrics.jsonl` or `evaluations.jsonl`."""

    def __init__(self, path: Path) -> None:
        self._tail = MetricsTail(path, _BLOCK)
        self.curves = Curves()

    def update(self) -> None:
        """Read the next block of the file. Begin again if the run was resumed from an earlier iteration."""
        rows, restarted = self._tail.read()
        if restarted and self.curves.rows:
            self.curves = Curves()
        self.curves.append(rows)

    @property
    def more(self) -> bool:
        """True if the file may hold more than was read."""
        return self._tail.more

    @property
    def skipped(self) -> int:
        """Number of lines that are not rows of an ascending iteration."""
        return self._tail.skipped + self.curves.skipped


def _mean(values: Sequence[object]) -> float | None:
    """Return the mean of a list of numbers, such as `idle`, which has one per rank."""
    numbers = [measured for value in values if (measured := number(value)) is not None]
    return number(sum(numbers) / len(numbers)) if numbers else None


def _plain(values: Array, digits: int) -> list[float | None]:
    """Return values for JSON, rounded to significant digits, with None for those that are not finite."""
    finite = np.isfinite(values)
    return [
        float(f"{value:.{digits}g}") if there else None
        for value, there in zip(values.tolist(), finite.tolist(), strict=True)
    ]
