"""Where a rank's time goes. Every moment is booked once, so the phases add up to the whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from lockstep.group.group import Group
from lockstep.rollout import STATUS

__all__ = ["Lap", "Stopwatch"]

_PHASES = STATUS[2:]


class Stopwatch:
    """Seconds per phase since it was made. What passes outside of a phase is booked as `record`."""

    def __init__(self, group: Group) -> None:
        """`group` knows what was spent on other ranks, in whatever phase: that is booked as `wait` and `sync`."""
        self._group = group
        self._seconds = dict.fromkeys(_PHASES, 0.0)
        self._phase = "record"
        self._mark = perf_counter()
        group.timings()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Books what passes inside as `name`, less what is spent on other ranks."""
        self._book()
        self._phase = name
        yield
        self._book()
        self._phase = "record"

    def _book(self) -> None:
        now = perf_counter()
        waited, moved = self._group.timings()
        self._seconds["wait"] += waited
        self._seconds["sync"] += moved
        self._seconds[self._phase] += now - self._mark - waited - moved
        self._mark = now

    def seconds(self) -> dict[str, float]:
        """Seconds per phase up to now, the phase that goes on included."""
        self._book()
        return dict(self._seconds)


class Lap:
    """Seconds since this was last asked, `iter` for all and then by phase."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._before = watch.seconds()

    def __call__(self) -> dict[str, float]:
        """Asks, and starts anew."""
        now = self._watch.seconds()
        passed = {name: now[name] - self._before[name] for name in _PHASES}
        self._before = now
        return {"iter": sum(passed.values()), **passed}
