"""Time per phase of a rank. Every moment is counted once, so the phases add up to the total."""

from contextlib import AbstractContextManager
from time import perf_counter

from lockstep.group.group import Group
from lockstep.phases import PHASES
from lockstep.processes.heartbeat import enter

__all__ = ["Lap", "Stopwatch"]


class Stopwatch:
    """Timer of the phases of a rank, in seconds. Time outside of a phase counts as `record`."""

    def __init__(self, group: Group) -> None:
        """Start measuring. In every phase, time that `group` spends on communication counts as `wait` and `sync`."""
        self._group = group
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._inside = {name: _Phase(self, name) for name in PHASES}
        self._phase = "record"
        self._mark = perf_counter()
        group.timings()

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Count the time inside as `name`, without the time spent on communication."""
        return self._inside[name]

    def switch(self, name: str) -> None:
        """Count the time from now on as `name`."""
        now = perf_counter()
        waited, transferred = self._group.timings()
        seconds = self._seconds
        seconds["wait"] += waited
        seconds["sync"] += transferred
        seconds[self._phase] += now - self._mark - waited - transferred
        self._mark = now
        if name != self._phase:
            self._phase = name
            enter(name)

    def seconds(self) -> dict[str, float]:
        """Return the seconds per phase, including the current one."""
        self.switch(self._phase)
        return dict(self._seconds)


class _Phase(AbstractContextManager[None]):
    def __init__(self, watch: Stopwatch, name: str) -> None:
        self._watch = watch
        self._name = name

    def __enter__(self) -> None:
        self._watch.switch(self._name)

    def __exit__(self, *error: object) -> None:
        self._watch.switch("record")


class Lap:
    """Timer of the seconds between two calls, in total and per phase."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._before = watch.seconds()

    def __call__(self) -> dict[str, float]:
        """Return the seconds since the last call: `iter` in total, then each phase."""
        now, before = self._watch.seconds(), self._before
        seconds = {name: now[name] - before[name] for name in PHASES}
        self._before = now
        return {"iter": sum(seconds.values()), **seconds}
