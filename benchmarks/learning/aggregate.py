"""Statistics over seeds and tasks: interquartile means, bootstrap intervals and performance profiles.

They are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(arXiv:2108.13264).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lockstep.report.intervals import Estimate, Floats, bootstrap, interquartile_mean


class Band(NamedTuple):
    """A curve with the ends of its pointwise 95% bootstrap intervals."""

    value: Floats
    low: Floats
    high: Floats


def _pooled_interquartile_mean(*tasks: Floats, axis: int = -1) -> Floats:
    return interquartile_mean(np.concatenate(tasks, axis=axis), axis)


def _share_above(*tasks: Floats, axis: int = -1) -> Floats:
    return np.mean(np.concatenate(tasks, axis=axis) > 0, axis=axis)


def estimate(scores: Sequence[Sequence[float]]) -> Estimate:
    """Return the interquartile mean of all scores, with an interval from resampling the seeds of each task.

    Args:
        scores: Scores by task, one for each seed. Several tasks must have normalized scores, and equally many seeds.
    """
    tasks = [np.asarray(task, dtype=np.float64) for task in scores]
    value = float(_pooled_interquartile_mean(*tasks))
    if min(map(len, tasks)) < 2:
        return Estimate(value, np.nan, np.nan)
    low, high = bootstrap(tasks, _pooled_interquartile_mean)
    return Estimate(value, float(low), float(high))


def difference(scores: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> Estimate:
    """Return by how much the interquartile mean of `scores` exceeds that of `others`, with an interval as that of `estimate`."""
    tasks = [np.asarray(task, dtype=np.float64) for task in (*scores, *others)]
    count = len(scores)

    def statistic(*tasks: Floats, axis: int = -1) -> Floats:
        return _pooled_interquartile_mean(*tasks[:count], axis=axis) - _pooled_interquartile_mean(
            *tasks[count:], axis=axis
        )

    value = float(statistic(*tasks))
    if min(map(len, tasks)) < 2:
        return Estimate(value, np.nan, np.nan)
    low, high = bootstrap(tasks, statistic)
    return Estimate(value, float(low), float(high))


def curve(returns: Floats) -> Band:
    """Return the interquartile mean of learning curves, `[seeds, points]`, at every point."""
    value = interquartile_mean(returns, axis=0)
    if len(returns) < 2:
        return Band(value, value, value)
    return Band(value, *bootstrap([returns], _pooled_interquartile_mean, axis=0))


def profile(scores: Sequence[Sequence[float]], thresholds: Floats) -> Band:
    """Return the share of runs whose normalized score is above each threshold, with stratified bootstrap intervals.

    Args:
        scores: Normalized scores by task, equally many for each.
        thresholds: Scores.
    """
    tasks = [np.asarray(task, dtype=np.float64)[:, None] - thresholds for task in scores]
    value = _share_above(*tasks, axis=0)
    if min(map(len, tasks)) < 2:
        return Band(value, value, value)
    return Band(value, *bootstrap(tasks, _share_above, axis=0))


def balanced(scores: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the scores of the first seeds of each task, as many as the task with the fewest has, so that all count equally."""
    count = min(map(len, scores))
    return [list(task[:count]) for task in scores]


def normalized(score: float, random_score: float, bar: float) -> float:
    """Return a score on the scale on which random actions have 0 and the bar is 1."""
    return (score - random_score) / (bar - random_score)
