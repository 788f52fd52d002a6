"""Medians and bands of curves, compared with values computed by hand."""

import numpy as np
import pytest

from lockstep.report.bands import median_band, points


def curve(*pairs: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, dtype=np.float64)
    return table[:, 0], table[:, 1]


def test_points_skip_rows_without_finite_numbers() -> None:
    rows = [
        {"env_steps": 10, "seconds": 0.5, "entropy": 1.0},
        {"env_steps": 20, "seconds": 1.5, "entropy": None},
        {"env_steps": 30, "seconds": 2.5, "entropy": float("nan")},
        {"env_steps": 40, "seconds": 3.5},
        {"entropy": 2.0},
        {"env_steps": 50, "seconds": 4.5, "entropy": "much"},
        {"env_steps": 60, "seconds": 5.5, "entropy": 3},
    ]
    assert [part.tolist() for part in points(rows, "entropy")] == [[10, 60], [1, 3]]
    assert [part.tolist() for part in points(rows, "entropy", "seconds")] == [[0.5, 5.5], [1, 3]]
    assert [part.tolist() for part in points([], "entropy")] == [[], []]


def test_the_band_of_one_curve_is_the_curve() -> None:
    band = median_band([curve((1, 5), (2, 7))])
    assert band is not None
    for part in (band.low, band.median, band.high):
        assert part.tolist() == [5, 7]


def test_median_and_quartiles_on_common_steps() -> None:
    band = median_band([curve((0, level), (10, level + 10)) for level in (0.0, 4.0, 8.0, 100.0)])
    assert band is not None
    assert band.x.tolist() == [0, 10]
    # values 0, 4, 8, 100: the quartiles lie at positions 0.75, 1.5 and 2.25 of 0 … 3
    assert band.low.tolist() == [3, 13]
    assert band.median.tolist() == [6, 16]
    assert band.high.tolist() == [31, 41]


def test_curves_are_interpolated_over_their_common_range() -> None:
    band = median_band([curve((0, 0), (10, 10), (20, 20)), curve((4, 100), (14, 200)), curve((2, 50), (18, 50))])
    assert band is not None
    assert band.x.tolist() == [4, 10, 14]
    assert band.median.tolist() == [50, 50, 50]
    # three curves: the band is from the lowest to the highest
    assert band.low.tolist() == [4, 10, 14]
    assert band.high.tolist() == [100, 160, 200]
    assert band.curves.tolist() == [[4, 10, 14], [100, 160, 200], [50, 50, 50]]


def test_many_points_are_reduced_to_500() -> None:
    line = np.linspace(0, 1, 700)
    band = median_band([(line, 2 * line), (line + 1e-4, 2 * line)])
    assert band is not None
    assert len(band.x) == 500
    assert band.median == pytest.approx(2 * band.x - 1e-4, abs=1e-9)


@pytest.mark.parametrize("other", [curve((5, 1), (6, 1)), (np.zeros(0), np.zeros(0))])
def test_curves_without_common_steps_have_no_band(other: tuple[np.ndarray, np.ndarray]) -> None:
    assert median_band([curve((1, 1), (2, 1)), other]) is None
