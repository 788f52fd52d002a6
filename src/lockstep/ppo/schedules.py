"""Schedules: settings that change during a run, as functions of its progress."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Schedule"]

_FORMS = (
    "a number of at least 0, or a schedule of such numbers: linear(a, b), cosine(a, b) or "
    "piecewise(0: a, 0.5: b, 1: c) with ascending shares from 0 to 1"
)


@dataclass(frozen=True)
class Schedule:
    """Function from the progress of a run, in [0, 1], to the value of a setting: `schedule(progress)`."""

    points: tuple[tuple[float, float], ...]
    """Points (progress, value) with ascending progress. The value is constant outside of them."""
    blend: Callable[[float], float]
    """Interpolation between two points, a function [0, 1] -> [0, 1]."""

    @classmethod
    def parse(cls, text: float | str, field: str = "schedule") -> "Schedule":
        """Parse a number, `linear(a, b)`, `cosine(a, b)` or `piecewise(p: a, q: b, …)`.

        `cosine` is half a cosine period, `piecewise` consists of straight lines.
        Raises ValueError, naming `field`, if `text` is anything else.
        """
        problem = ValueError(f"{field} is {text!r}: it must be {_FORMS}")
        blend = _linear
        try:
            match = re.fullmatch(r"\s*(linear|cosine|piecewise)\s*\(([^()]*)\)\s*", str(text))
            if match is None:
                points: tuple[tuple[float, float], ...] = ((0.0, float(text)),)
            elif match[1] == "piecewise":
                pairs = (part.split(":") for part in match[2].split(","))
                points = tuple((float(progress), float(value)) for progress, value in pairs)
            else:
                start, end = (float(part) for part in match[2].split(","))
                points, blend = ((0.0, start), (1.0, end)), _cosine if match[1] == "cosine" else _linear
        except (ValueError, OverflowError):  # OverflowError: an integer may be too large for a float
            raise problem from None
        shares = [share for share, _ in points]
        ascending = all(earlier < later for earlier, later in pairwise(shares))
        finite = all(math.isfinite(value) and value >= 0 for _, value in points)
        if not (ascending and finite and shares[0] >= 0 and shares[-1] <= 1):  # `not`: rejects NaN too
            raise problem
        return cls(points, blend)

    def __call__(self, progress: float) -> float:
        """Return the value at `progress`."""
        if progress <= self.points[0][0]:
            return self.points[0][1]
        for (earlier, start), (later, end) in pairwise(self.points):
            if progress < later:
                return start + (end - start) * self.blend((progress - earlier) / (later - earlier))
        return self.points[-1][1]


def _linear(share: float) -> float:
    return share


def _cosine(share: float) -> float:
    return (1 - math.cos(math.pi * share)) / 2
