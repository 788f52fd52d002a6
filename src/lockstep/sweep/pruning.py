"""Early end of the trials of a search whose returns are low compared with those of earlier trials."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from lockstep.experiment.resolve import iterations
from lockstep.sweep.member import Member
from lockstep.sweep.search import Trials
from lockstep.telemetry.status import number
from lockstep.telemetry.tail import MetricsTail

__all__ = ["Pruning"]

_TENTHS = 10
"""Number of points of the budget at which the return is reported."""


class Pruning:
    """Reports the return of the first seed of every trial at each tenth of the budget, and decides which trials end there.

    The decisions depend only on the metrics and on earlier batches of trials, not on when the metrics are read: a trial
    whose run is over before it could be ended is pruned all the same.
    """

    def __init__(
        self, trials: Trials, members: Mapping[int, Sequence[Member]], print_line: Callable[[str], None]
    ) -> None:
        """Watch a batch of trials. `members` are the runs of each, the first seed first."""
        self._trials, self._members, self._print_line = trials, members, print_line
        self._watched = {number: _FirstSeed(runs[0]) for number, runs in members.items() if runs}
        self._names: set[str] = set()
        self.pruned: list[int] = []
        """Numbers of the pruned trials."""

    def update(self) -> set[str]:
        """Read the new metrics of all trials that are not pruned. Return the names of all runs of pruned trials."""
        for trial in [trial for trial in self._watched if trial not in self.pruned]:
            for tenth, value in self._watched[trial].new_returns():
                if self._trials.report(trial, tenth, value) and tenth < _TENTHS:
                    self._prune(trial, tenth, value)
                    break
        return self._names

    def _prune(self, trial: int, tenth: int, value: float) -> None:
        self.pruned.append(trial)
        why = f"return {value:.4g} at {tenth / _TENTHS:.0%} of the budget is below the median of the earlier trials"
        for member in self._members[trial]:
            member.folder.mark_pruned(why)
            self._names.add(member.name)
        self._print_line(f"trial {trial} pruned: {why}")


class _FirstSeed:
    """Reader of the returns of one run at each tenth of its budget."""

    def __init__(self, member: Member) -> None:
        last = iterations(member.config)
        self._tail = MetricsTail(member.folder.path / "metrics.jsonl")
        self._ahead = deque((tenth, math.ceil(tenth * last / _TENTHS)) for tenth in range(1, _TENTHS + 1))
        """Tenths that are not reached yet, and their iterations."""

    def new_returns(self) -> list[tuple[int, float]]:
        """Return the tenths that were reached since the last call, each with the mean return of the last 20 episodes.

        A tenth before the 20th episode is left out.
        """
        returns = []
        for row in self._tail.read()[0]:  # rows that a resumed run repeats have the same values
            while self._ahead and row.get("iteration") == self._ahead[0][1]:
                tenth, _ = self._ahead.popleft()
                if (value := number(row.get("return_mean_20"))) is not None:
                    returns.append((tenth, value))
        return returns
