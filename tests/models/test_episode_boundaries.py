"""Rows that are put into sequences."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lockstep.models.episode_boundaries import EpisodeBoundaries

RESETS = st.tuples(st.integers(1, 12), st.integers(1, 5)).flatmap(lambda shape: arrays(np.bool_, shape))


@given(RESETS)
def test_each_episode_begins_behind_a_row_that_forgets(resets: np.ndarray) -> None:
    length, count = resets.shape
    spacing = EpisodeBoundaries.of(torch.from_numpy(resets), torch.float64)
    if spacing is None:
        assert not resets[1:].any()
        return
    rows = torch.arange(1.0, length * count + 1, dtype=torch.float64).view(length, count, 1)
    spread = spacing.spread(rows)
    assert torch.equal(spacing.gather(spread), rows)
    assert torch.equal(spacing.last(spread), rows[-1])
    assert len(spread) == length + resets[1:].sum(0).max()
    kinds = spacing.marks.argmax(2)
    assert torch.equal(spacing.marks.sum(2), torch.ones(kinds.shape, dtype=torch.float64))
    for n in range(count):
        expected: list[tuple[int, float]] = []
        for row, begins in enumerate(resets[:, n]):
            expected += [(1, 0.0)] * (row > 0 and bool(begins)) + [(0, rows[row, n].item())]
        expected += [(2, 0.0)] * (len(spread) - len(expected))
        assert list(zip(kinds[:, n].tolist(), spread[:, n, 0].tolist(), strict=True)) == expected


@given(RESETS)
def test_resets_stay_as_they_are(resets: np.ndarray) -> None:
    given_resets = torch.from_numpy(resets.copy())
    EpisodeBoundaries.of(given_resets, torch.float32)
    np.testing.assert_array_equal(given_resets, resets)
