"""Aggregation of the learning curves of several runs: the median, and a band around it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.report.style import Over

__all__ = ["QUARTILE_CURVES", "Band", "Points", "median_band", "points"]

Array = NDArray[np.float64]
Points = tuple[Array, Array]
"""A curve of N points: x `[N]` (steps or seconds, ascending) and y `[N]` (the metric)."""
QUARTILE_CURVES = 4
"""Smallest number of curves whose band ends at the quartiles. Quartiles of fewer would be interpolated between two curves, and hide the others."""
_MAX_POINTS = 500
"""Largest number of points of a band."""
_COLUMNS = {"steps": "env_steps", "seconds": "seconds"}


@dataclass(frozen=True)
class Band:
    """Median of several curves over `x`, steps or seconds, and a band around it, `[N]` each. For a single curve, all are equal to it.

    The band is from the first to the third quartile; for fewer than 4 curves, from the lowest to the highest.
    """

    x: Array
    low: Array
    median: Array
    high: Array
    curves: Array
    """The interpolated curves `[C, N]`."""


def points(metrics: Sequence[Mapping[str, Any]], name: str, over: Over = "steps") -> Points:
    """Return a metric over steps or seconds, from rows of metrics.jsonl. Skip rows without finite numbers for both."""
    pairs = [(row.get(_COLUMNS[over]), row.get(name)) for row in metrics]
    table = np.array([pair for pair in pairs if all(isinstance(part, (int, float)) for part in pair)], dtype=np.float64)
    table = table.reshape(-1, 2)
    table = table[np.isfinite(table).all(axis=1)]
    return table[:, 0], table[:, 1]


def median_band(curves: Sequence[Points]) -> Band | None:
    """Compute median and band over the range of x that all curves cover. Return None if there is no such range.

    Every curve is interpolated linearly at the same x: at the points of all curves, or at 500 equally spaced points if there are more.
    """
    if any(not len(x) for x, _ in curves):
        return None
    if len(curves) == 1:
        x, y = curves[0]
        return Band(x, y, y, y, y[None])
    begin, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if begin > end:
        return None
    common = np.unique(np.concatenate([x for x, _ in curves]))
    common = common[(common >= begin) & (common <= end)]
    if len(common) > _MAX_POINTS:
        common = np.linspace(begin, end, _MAX_POINTS)
    table = np.array([np.interp(common, x, y) for x, y in curves])
    ends = (25, 75) if len(curves) >= QUARTILE_CURVES else (0, 100)
    low, median, high = np.percentile(table, (ends[0], 50, ends[1]), axis=0)
    return Band(common, low, median, high, table)
