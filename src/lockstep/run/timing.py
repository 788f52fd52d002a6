"""Where a rank's time goes. Every moment is booked once, so the phases add up to the whole."""

from contextlib import AbstractContextManager
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
        self._inside = {name: _Phase(self, name) for name in _PHASES}
        self._phase = "record"
        self._mark = perf_counter()
        group.timings()

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Books what passes inside as `name`, less what is spent on other ranks."""
        return self._inside[name]

    def turn_to(self, name: str) -> None:
        """From now on books as `name`."""
        now = perf_counter()
        waited, moved = self._group.timings()
        seconds = self._seconds
        seconds["wait"] += waited
        seconds["sync"] += moved
        seconds[self._phase] += now - self._mark - waited - moved
        self._mark = now
        self._phase = name

    def seconds(self) -> dict[str, float]:
        """Seconds per phase up to now, the phase that goes on included."""
        self.turn_to(self._phase)
        return dict(self._seconds)


class _Phase(AbstractContextManager[None]):
    def __init__(self, watch: Stopwatch, name: str) -> None:
        self._watch = watch
        self._name = name

    def __enter__(self) -> None:
        self._watch.turn_to(self._name)

    def __exit__(self, *error: object) -> None:
        self._watch.turn_to("record")


class Lap:
    """Seconds since this was last asked, `iter` for all and then by phase."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._before = watch.seconds()

    def __call__(self) -> dict[str, float]:
        """Asks, and starts anew."""
        now, before = self._watch.seconds(), self._before
        passed = {name: now[name] - before[name] for name in _PHASES}
        self._before = now
        return {"iter": sum(passed.values()), **passed}
