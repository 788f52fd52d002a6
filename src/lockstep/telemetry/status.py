"""Status of a run: the numbers that a progress display shows, computed from the metrics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lockstep.phases import PHASES
from lockstep.run.settings import WINDOW

__all__ = ["RecentReturn", "RunStatus", "number"]

_RECENT = 10.0
"""Time constant of the recent averages, in seconds."""
_POINTS = 256
"""Largest number of points in the history of the return."""


def number(value: object) -> float | None:
    """Return `value` as a float if it is a finite number, else None."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an int beyond the range of floats
        return None


class RecentReturn:
    """Mean return of the last 20 episodes of a run, and of all its episodes before there are 20, from the rows of its metrics.

    This is the mean that training prints at its end. Rows must be added in order of iteration, from the first one.
    """

    def __init__(self, rows: Iterable[Mapping[str, object]] = ()) -> None:
        self.mean: float | None = None
        """The mean after the last row that was added; None before the first episode has ended."""
        self._total, self._count = 0.0, 0.0
        for row in rows:
            self.add(row)

    @property
    def episodes(self) -> int:
        """Number of episodes of the mean."""
        return min(int(self._count), WINDOW)

    def add(self, row: Mapping[str, object]) -> float | None:
        """Add the next row, and return the mean after it."""
        mean, count = number(row.get("return_mean")), number(row.get("episodes"))
        if mean is not None and count is not None:
            self._total, self._count = self._total + count * mean, self._count + count
        if (last_20 := number(row.get("return_mean_20"))) is not None:
            self.mean = last_20
        elif self._count:  # before 20 episodes have ended, all of them are among the last 20
            self.mean = self._total / self._count
        return self.mean


@dataclass
class _Recent:
    """Exponentially decaying sums over recent iterations."""

    seconds: float = 0.0
    iterations: float = 0.0
    steps: float = 0.0

    def __post_init__(self) -> None:
        self.phases = {"t_": dict.fromkeys(PHASES, 0.0), "player_t_": dict.fromkeys(PHASES, 0.0)}
        self.idle: list[float] = []

    def decay(self, factor: float) -> None:
        self.seconds, self.iterations, self.steps = (
            factor * value for value in (self.seconds, self.iterations, self.steps)
        )
        self.phases = {
            role: {name: factor * value for name, value in seconds.items()} for role, seconds in self.phases.items()
        }
        self.idle = [factor * value for value in self.idle]

    def add(self, row: Mapping[str, object]) -> None:
        seconds = number(row.get("t_iter")) or 0.0
        self.seconds += seconds
        self.iterations += 1
        self.steps += seconds * (number(row.get("fps")) or 0.0)
        for role, phase_seconds in self.phases.items():
            for name in phase_seconds:
                phase_seconds[name] += number(row.get(role + name)) or 0.0
        idle = row.get("idle")
        shares = [number(share) or 0.0 for share in idle] if isinstance(idle, list) else []
        if len(shares) != len(self.idle):  # the run was resumed with another number of ranks
            self.idle = [0.0] * len(shares)
        self.idle = [earlier + seconds * share for earlier, share in zip(self.idle, shares, strict=True)]


class RunStatus:
    """Status computed from rows of metrics. Rows must be appended in order of iteration."""

    def __init__(self) -> None:
        self._new: list[Mapping[str, object]] = []
        self._recent = _Recent()
        self._return = RecentReturn()
        self._history: list[float] = []
        self._bucket: list[float] = []
        self._bucket_size = 1
        """Iterations that are averaged into one point of the history."""
        self.newest: Mapping[str, object] = {}
        """The last row; empty before the first one."""
        self.best: float | None = None
        """Largest `return_mean_20`."""
        self.evaluation: Mapping[str, object] = {}
        """The newest evaluation during training, a row of evaluations.jsonl; empty before the first one."""
        self.best_evaluation: Mapping[str, object] = {}
        """The evaluation with the largest mean return; empty before the first one."""

    def append(self, row: Mapping[str, object]) -> None:
        """Queue a row for the next `update`. Do no work here, because training waits for this call."""
        self._new.append(row)

    def append_evaluation(self, row: Mapping[str, object]) -> None:
        """Add an evaluation during training."""
        self.evaluation = row
        mean, best = number(row.get("return_mean")), number(self.best_evaluation.get("return_mean"))
        if best is None or (mean is not None and mean > best):
            self.best_evaluation = row

    def update(self) -> None:
        """Process the queued rows."""
        rows, self._new = self._new, []
        if not rows:
            return
        self.newest = rows[-1]
        for row in rows:
            mean = number(row.get("return_mean_20"))
            if mean is not None:
                self.best = mean if self.best is None else max(self.best, mean)
            if (mean_return := self._return.add(row)) is not None:
                self._append_history(mean_return)
        recent = _last_seconds(rows)
        elapsed = sum(number(row.get("t_iter")) or 0.0 for row in recent)
        self._recent.decay(math.exp(-elapsed / _RECENT))
        for row in recent:
            self._recent.add(row)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 20 episodes; before there are 20, of all episodes."""
        return self._return.mean

    @property
    def history(self) -> list[float]:
        """Values of `mean_return` since the first iteration, averaged over equal numbers of iterations if there are many."""
        return self._history + ([sum(self._bucket) / len(self._bucket)] if self._bucket else [])

    @property
    def steps_per_second(self) -> float | None:
        """Recent environment steps per second; None before the first row."""
        return self._recent.steps / self._recent.seconds if self._recent.seconds else None

    @property
    def idle(self) -> list[float]:
        """Recent share of time that each rank waited for others, by rank."""
        return [value / self._recent.seconds for value in self._recent.idle] if self._recent.seconds else []

    def shares(self, role: str) -> dict[str, float]:
        """Return the recent share of time of each phase; empty if the run has no ranks of this role.

        `role` is the prefix of its metrics: `t_` (rank 0) or `player_t_`.
        """
        phase_seconds = self._recent.phases[role]
        total = sum(phase_seconds.values())
        return {name: seconds / total for name, seconds in phase_seconds.items()} if total > 0 else {}

    def seconds_left(self, last: int) -> float | None:
        """Estimate the seconds until the end of iteration `last`, at the recent speed. Return None before the first row."""
        done = number(self.newest.get("iteration"))
        if done is None or not self._recent.iterations:
            return None
        return max(0.0, last - done) * self._recent.seconds / self._recent.iterations

    def _append_history(self, mean_return: float) -> None:
        """Add a value to the history. When the history is full, average neighbors, so that half of the points remain."""
        self._bucket.append(mean_return)
        if len(self._bucket) == self._bucket_size:
            self._history.append(sum(self._bucket) / self._bucket_size)
            self._bucket = []
        if len(self._history) == _POINTS:
            pairs = zip(self._history[::2], self._history[1::2], strict=True)
            self._history, self._bucket_size = [(first + second) / 2 for first, second in pairs], 2 * self._bucket_size


def _last_seconds(rows: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Return the newest rows that cover `_RECENT` seconds. In a long history, the weight of older rows would be negligible."""
    recent, elapsed = [], 0.0
    for row in reversed(rows):
        if elapsed > _RECENT:
            break
        elapsed += number(row.get("t_iter")) or 0.0
        recent.append(row)
    return recent[::-1]
