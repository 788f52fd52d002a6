"""Repeats that other load on the machine meets alike, and what they show."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["DISTURBED", "Spread", "interleave", "ratios", "spread"]

DISTURBED = 0.2
"""A range of more than this share of the median says that something else was running."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Spread:
    """The median of some repeats, and the least and the most of them."""

    median: float
    least: float
    most: float

    @property
    def range(self) -> float:
        """Distance from the least to the most, as a share of the median; 0 where the median is 0."""
        return (self.most - self.least) / self.median if self.median else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(above: Sequence[float], below: Sequence[float]) -> Spread:
    """`above / below`, taken within each repeat, in which both met the same machine. Raises ValueError for unequal lengths."""
    return spread([one / other for one, other in zip(above, below, strict=True)])


def interleave(
    runs: Mapping[str, Callable[[], Result]], repeats: int, told: Callable[[int, str, Result], None] | None = None
) -> dict[str, list[Result]]:
    """Does all `runs` once per repeat, each time beginning with the next one, and gives their results in order of repeats.

    `told` is called after each with the repeat, from 0, its name and result.
    """
    found: dict[str, list[Result]] = {name: [] for name in runs}
    names = list(runs)
    for repeat in range(repeats):
        first = repeat % len(names) if names else 0
        for name in names[first:] + names[:first]:
            found[name].append(runs[name]())
            if told is not None:
                told(repeat, name, found[name][-1])
    return found
