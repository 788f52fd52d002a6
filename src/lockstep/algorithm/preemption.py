"""Preemption of slow players, not of jobs: rollouts end early once most shards have finished theirs.

Steps that are not taken have no weight: their rows are not valid, so losses, gradients and statistics are means over the steps that were
taken. From Wijmans et al. 2020, "DD-PPO", arXiv:1911.00357, section 3, where 60% of the workers suffice.
"""

import math
from collections.abc import Callable

from lockstep.algorithm.plan import PlanConfig
from lockstep.group.finished_count import FinishedCount

__all__ = ["Preemption"]


class Preemption:
    """Decides when the rollouts of a rank end early. Results depend on the speed of the ranks."""

    def __init__(self, finished: FinishedCount, shards: int, steps: int, share: float, least: float) -> None:
        """End rollouts of at least `least` × `steps` steps once a `share` of all `shards` have finished."""
        self._finished = finished
        self._enough = _ceil(share * shards)
        self._least = _ceil(least * steps)

    @classmethod
    def make(
        cls, config: PlanConfig, make_count: Callable[[int], FinishedCount], shards: int, steps: int
    ) -> "Preemption | None":
        """Return None if `plan.preempt` is not set. `make_count` is `Group.finished_count`, `steps` are those of a rollout."""
        if config.preempt is None:
            return None
        return cls(make_count(shards), shards, steps, config.preempt, config.preempt_after)

    def is_due(self, iteration: int, steps: int) -> bool:
        """Return True if the rollouts of an iteration end now, of which this rank has taken `steps` steps."""
        return steps >= self._least and self._finished.total(iteration) >= self._enough

    def finish(self, iteration: int, shards: int) -> None:
        """Report that this rank's rollouts have ended, early or not; it plays this number of shards."""
        self._finished.finish(iteration, shards)


def _ceil(number: float) -> int:
    """Round up, but not because of rounding errors: 0.1 × 30 is 3."""
    return max(1, math.ceil(number - 1e-9))
