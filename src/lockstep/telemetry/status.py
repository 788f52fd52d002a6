"""How a run is going, in the numbers that a person looks at: gathered from its metrics, for whatever shows them."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["PHASES", "RunStatus", "number"]

PHASES = ("rollout", "learn", "sync", "wait", "publish", "record")
"""Parts of a rank's time, which add up to `iter`. (Those of `STATUS`, which can't be had without PyTorch.)"""
_RECENT = 10.0
"""Seconds that averages are about."""
_POINTS = 256
"""Of the return's history, at most."""


def number(value: object) -> float | None:
    """A finite number, or None."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


@dataclass
class _Recent:
    """Sums over the last seconds, old ones fading."""

    seconds: float = 0.0
    iterations: float = 0.0
    steps: float = 0.0

    def __post_init__(self) -> None:
        self.phases = {"t_": dict.fromkeys(PHASES, 0.0), "player_t_": dict.fromkeys(PHASES, 0.0)}
        self.idle: list[float] = []

    def fade(self, factor: float) -> None:
        self.seconds, self.iterations, self.steps = (
            factor * value for value in (self.seconds, self.iterations, self.steps)
        )
        self.phases = {role: {name: factor * value for name, value in own.items()} for role, own in self.phases.items()}
        self.idle = [factor * value for value in self.idle]

    def add(self, row: Mapping[str, object]) -> None:
        seconds = number(row.get("t_iter")) or 0.0
        self.seconds += seconds
        self.iterations += 1
        self.steps += seconds * (number(row.get("fps")) or 0.0)
        for role, own in self.phases.items():
            for name in own:
                own[name] += number(row.get(role + name)) or 0.0
        idle = row.get("idle")
        shares = [number(share) or 0.0 for share in idle] if isinstance(idle, list) else []
        if len(shares) != len(self.idle):  # the run goes on with other ranks
            self.idle = [0.0] * len(shares)
        self.idle = [before + seconds * share for before, share in zip(self.idle, shares, strict=True)]


class RunStatus:
    """Of the rows that it was given, which must come in order."""

    def __init__(self) -> None:
        self._new: list[Mapping[str, object]] = []
        self._recent = _Recent()
        self._history: list[float] = []
        self._waiting: list[float] = []
        self._each = 1
        self.newest: Mapping[str, object] = {}
        """The last row; empty before the first one."""
        self.best: float | None = None
        """Largest `return_mean_20`."""

    def take(self, row: Mapping[str, object]) -> None:
        """Keeps a row for `settle`: as little as can be, because training waits for it."""
        self._new.append(row)

    def settle(self) -> None:
        """Works in what was taken."""
        rows, self._new = self._new, []
        if not rows:
            return
        self.newest = rows[-1]
        for row in rows:
            mean = number(row.get("return_mean_20"))
            if mean is not None:
                self.best = mean if self.best is None else max(self.best, mean)
            if (shown := _return(row)) is not None:
                self._note(shown)
        recent = list(_last_seconds(rows))
        passed = sum(number(row.get("t_iter")) or 0.0 for row in recent)
        self._recent.fade(math.exp(-passed / _RECENT))
        for row in recent:
            self._recent.add(row)

    @property
    def mean_return(self) -> float | None:
        """Of the last 20 episodes, or of the iteration's before there were 20."""
        return _return(self.newest)

    @property
    def history(self) -> list[float]:
        """`mean_return` from the first iteration on, thinned out evenly."""
        return self._history + ([sum(self._waiting) / len(self._waiting)] if self._waiting else [])

    @property
    def steps_per_second(self) -> float | None:
        """Of late."""
        return self._recent.steps / self._recent.seconds if self._recent.seconds else None

    @property
    def idle(self) -> list[float]:
        """Share of its time that each rank waited for others of late, by rank."""
        return [value / self._recent.seconds for value in self._recent.idle] if self._recent.seconds else []

    def shares(self, role: str) -> dict[str, float]:
        """Share of time by phase of late, of `t_` (rank 0) or `player_t_` (ranks that only play). Empty without such ranks."""
        own = self._recent.phases[role]
        whole = sum(own.values())
        return {name: value / whole for name, value in own.items()} if whole > 0 else {}

    def seconds_left(self, last: int) -> float | None:
        """To the end of iteration `last`, at the pace of late."""
        done = number(self.newest.get("iteration"))
        if done is None or not self._recent.iterations:
            return None
        return max(0.0, last - done) * self._recent.seconds / self._recent.iterations

    def _note(self, value: float) -> None:
        self._waiting.append(value)
        if len(self._waiting) == self._each:
            self._history.append(sum(self._waiting) / self._each)
            self._waiting = []
        if len(self._history) == _POINTS:
            pairs = zip(self._history[::2], self._history[1::2], strict=True)
            self._history, self._each = [(one + other) / 2 for one, other in pairs], 2 * self._each


def _return(row: Mapping[str, object]) -> float | None:
    mean = number(row.get("return_mean_20"))
    return number(row.get("return_mean")) if mean is None else mean


def _last_seconds(rows: list[Mapping[str, object]]) -> Iterable[Mapping[str, object]]:
    """The newest rows, back to `_RECENT` seconds: of a whole history the others would count for nothing."""

    def newest_first() -> Iterator[Mapping[str, object]]:
        passed = 0.0
        for row in reversed(rows):
            if passed > _RECENT:
                return
            passed += number(row.get("t_iter")) or 0.0
            yield row

    return reversed(list(newest_first()))
