"""Statistics over seeds, compared with values computed by hand."""

import math

import numpy as np
import pytest

from lockstep.report.intervals import bootstrap, estimate_over_seeds, interquartile_mean


def test_the_interquartile_mean_is_the_mean_of_the_middle_half() -> None:
    assert interquartile_mean(np.array([100.0, 1, 2, 3, 4, 5, 6, -50])) == 3.5  # 2, 3, 4, 5 remain
    assert interquartile_mean(np.array([0.0, 9, 3])) == 4  # a quarter of 3 is less than one score
    assert interquartile_mean(np.array([[0.0, 4], [1, 5], [2, 6], [9, 90]]), axis=0).tolist() == [1.5, 5.5]


def test_the_interval_agrees_with_the_normal_approximation() -> None:
    scores = np.random.default_rng(1).normal(10, 2, 400)
    value, low, high = estimate_over_seeds(scores.tolist(), np.mean)
    half = 1.96 * scores.std(ddof=1) / math.sqrt(len(scores))
    assert value == pytest.approx(scores.mean())
    assert (low, high) == pytest.approx((value - half, value + half), abs=0.1 * half)
    assert estimate_over_seeds(scores.tolist(), np.mean) == (value, low, high)


def test_one_seed_has_no_interval() -> None:
    value, low, high = estimate_over_seeds([7.0], interquartile_mean)
    assert value == 7
    assert math.isnan(low)
    assert math.isnan(high)


def test_samples_are_resampled_on_their_own() -> None:
    low, high = bootstrap([np.zeros(5), np.ones(5)], lambda *tasks, axis: np.concatenate(tasks, axis).mean(axis))
    assert (low, high) == (0.5, 0.5)
