"""Statistics over seeds: the interquartile mean, and bootstrap intervals.

They are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv:2108.13264).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["RESAMPLES", "Estimate", "Floats", "bootstrap", "estimate_over_seeds", "interquartile_mean"]

RESAMPLES = 2000
"""Number of bootstrap samples."""

Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    """A statistic with the ends of its 95% bootstrap interval, NaN for fewer than two seeds."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: Floats, axis: int = -1) -> Floats:
    """Return the mean of the middle half of the scores: a quarter of them, rounded down, is left out at either end."""
    count = scores.shape[axis]
    middle = range(count // 4, count - count // 4)
    return np.asarray(np.sort(scores, axis).take(middle, axis).mean(axis))


def bootstrap(samples: Sequence[Floats], statistic: Callable[..., Floats], axis: int = -1) -> tuple[Floats, Floats]:
    """Return the ends of the 95% percentile interval of `statistic(*samples, axis=axis)`.

    Every sample is resampled along `axis` on its own: with one sample per task, the bootstrap is stratified. The random numbers are the same
    in every call.
    """
    generator = np.random.default_rng(0)
    resampled = []
    for sample in samples:
        last = np.moveaxis(sample, axis, -1)
        places = generator.integers(0, last.shape[-1], (RESAMPLES, last.shape[-1]))
        resampled.append(last[..., places])
    low, high = np.percentile(statistic(*resampled, axis=-1), (2.5, 97.5), axis=-1)
    return low, high


def estimate_over_seeds(scores: Sequence[float], statistic: Callable[..., Floats]) -> Estimate:
    """Return a statistic of one score per seed, such as `np.mean` or `interquartile_mean`, with its interval."""
    sample = np.asarray(scores, dtype=np.float64)
    value = float(statistic(sample, axis=-1))
    if len(sample) < 2:
        return Estimate(value, np.nan, np.nan)
    low, high = bootstrap([sample], statistic)
    return Estimate(value, float(low), float(high))
