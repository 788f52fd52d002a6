"""Tests of marker rows in sequences."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lockstep.models.episode_boundaries import EpisodeBoundaries

RESETS = st.tuples(st.integers(1, 12), st.integers(1, 5)).flatmap(lambda shape: arrays(np.bool_, shape))


@given(RESETS)
def test_a_marker_row_precedes_each_episode(resets: np.ndarray) -> None:
    length, count = resets.shape
    boundaries = EpisodeBoundaries.from_resets(torch.from_numpy(resets), torch.float64)
    if boundaries is None:
        assert not resets[1:].any()
        return
    rows = torch.arange(1.0, length * count + 1, dtype=torch.float64).view(length, count, 1)
    new_rows = boundaries.insert_marker_rows(rows)
    assert torch.equal(boundaries.remove_marker_rows(new_rows), rows)
    assert torch.equal(boundaries.last_rows(new_rows), rows[-1])
    assert len(new_rows) == length + resets[1:].sum(0).max()
    kinds = boundaries.marks.argmax(2)
    assert torch.equal(boundaries.marks.sum(2), torch.ones(kinds.shape, dtype=torch.float64))
    for n in range(count):
        expected: list[tuple[int, float]] = []
        for row, begins in enumerate(resets[:, n]):
            expected += [(1, 0.0)] * (row > 0 and bool(begins)) + [(0, rows[row, n].item())]
        expected += [(2, 0.0)] * (len(new_rows) - len(expected))
        assert list(zip(kinds[:, n].tolist(), new_rows[:, n, 0].tolist(), strict=True)) == expected


@given(RESETS)
def test_resets_are_not_changed(resets: np.ndarray) -> None:
    tensor = torch.from_numpy(resets.copy())
    EpisodeBoundaries.from_resets(tensor, torch.float32)
    np.testing.assert_array_equal(tensor, resets)
