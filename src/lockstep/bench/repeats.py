"""Interleaved repeats of several runs, so that other load on the machine affects all of them alike, and their statistics."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Spread", "disturbance_note", "interleave", "ratios", "spread"]

_DISTURBED = 0.2
"""Largest range, as a share of the median, that is expected on an otherwise idle machine."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of a value over the repeats."""

    median: float
    least: float
    most: float

    @property
    def range(self) -> float:
        """Difference of maximum and minimum, as a share of the median; 0 if the median is 0."""
        return (self.most - self.least) / self.median if self.median else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Compute the spread of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Compute the spread of the ratios of two runs within each repeat, in which other load affects both runs alike.

    Raises ValueError for unequal lengths.
    """
    return spread([numerator / denominator for numerator, denominator in zip(numerators, denominators, strict=True)])


def disturbance_note(widest: float) -> list[str]:
    """Return the lines of a note if the widest range of the repeats is larger than expected, else no lines."""
    if widest <= _DISTURBED:
        return []
    return ["", f"note: repeats differ by {widest:.0%}: other programs were running or runs are too short"]


def interleave(
    runs: Mapping[str, Callable[[], Result]], repeats: int, on_result: Callable[[int, str, Result], None] | None = None
) -> dict[str, list[Result]]:
    """Execute all `runs` once per repeat, each repeat starting with another run. Return the results of each run in order of repeats.

    `on_result` is called after each run with the repeat, counted from 0, the name of the run and its result.
    """
    results: dict[str, list[Result]] = {name: [] for name in runs}
    names = list(runs)
    for repeat in range(repeats):
        first = repeat % len(names) if names else 0
        for name in names[first:] + names[:first]:
            results[name].append(runs[name]())
            if on_result is not None:
                on_result(repeat, name, results[name][-1])
    return results
