"""Curves of several runs as one: the median and the quartiles around it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.report.style import Over

__all__ = ["Band", "Points", "join", "points"]

Array = NDArray[np.float64]
Points = tuple[Array, Array]
"""Steps or seconds `[N]`, ascending, and a metric there `[N]`."""
_PLACES = 500
"""At which curves are compared, at most."""
_COLUMNS = {"steps": "env_steps", "seconds": "seconds"}


@dataclass(frozen=True)
class Band:
    """What several curves have in common; with one curve, itself. All are `[N]`."""

    right: Array
    """Steps or seconds."""
    low: Array
    """The first quartile: a quarter of the curves is below."""
    middle: Array
    """The median."""
    high: Array
    """The third quartile."""


def points(metrics: Sequence[Mapping[str, Any]], name: str, over: Over = "steps") -> Points:
    """A metric over steps or seconds, from rows of metrics.jsonl; rows that have no finite number there are left out."""
    found = [(row.get(_COLUMNS[over]), row.get(name)) for row in metrics]
    table = np.array([pair for pair in found if all(isinstance(part, (int, float)) for part in pair)], dtype=np.float64)
    table = table.reshape(-1, 2)
    table = table[np.isfinite(table).all(axis=1)]
    return table[:, 0], table[:, 1]


def join(curves: Sequence[Points]) -> Band | None:
    """Median and quartiles of curves, where all of them go; None where there is no such place.

    Every curve is interpolated linearly onto the same places: those of all curves, or 500 at equal distances if there are more.
    """
    if any(not len(right) for right, _ in curves):
        return None
    if len(curves) == 1:
        right, up = curves[0]
        return Band(right, up, up, up)
    begin, end = max(right[0] for right, _ in curves), min(right[-1] for right, _ in curves)
    if begin > end:
        return None
    places = np.unique(np.concatenate([right for right, _ in curves]))
    places = places[(places >= begin) & (places <= end)]
    if len(places) > _PLACES:
        places = np.linspace(begin, end, _PLACES)
    table = np.array([np.interp(places, right, up) for right, up in curves])
    low, middle, high = np.percentile(table, (25, 50, 75), axis=0)
    return Band(places, low, middle, high)
