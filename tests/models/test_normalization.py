"""Moments against NumPy, and independent of who adds what."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.group.group import ordered_sum
from lockstep.models.normalization import _BLOCK, RunningStatistics
from lockstep.randomness import stream

SHARDS, ROWS, SIZE, ITERATIONS = 4, 50, 3, 5


def rows_of(mean: float, std: float) -> tuple[Tensor, Tensor]:
    """`[iterations, shards, rows, size]` and which rows count."""
    drawn = stream(1, "test").normal(mean, std, (ITERATIONS, SHARDS, ROWS, SIZE))
    return torch.from_numpy(drawn), torch.from_numpy(stream(2, "test").random((ITERATIONS, SHARDS, ROWS)) < 0.8)


def merged(rows: Tensor, valid: Tensor) -> RunningStatistics:
    moments = RunningStatistics(SIZE)
    for batch, which in zip(rows, valid, strict=True):
        total = ordered_sum(torch.stack([moments.sums(*shard) for shard in zip(batch, which, strict=True)]))
        moments.merge(total, moments.mean)
    return moments


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (-3.0, 1e-3), (5.0, 200.0)])
def test_equal_numpy(mean: float, std: float) -> None:
    rows, valid = rows_of(mean, std)
    moments = merged(rows, valid)
    together = rows[valid].numpy()
    assert moments.count.item() == len(together)
    np.testing.assert_allclose(moments.mean, together.mean(0), rtol=1e-12, atol=1e-14)
    # the first merge is about 0: of squares of 9 that a float64 holds to 9 · 2⁻⁵² = 2e-15, a variance of 1e-6 keeps 2e-9
    np.testing.assert_allclose(moments.squares / moments.count, together.var(0), rtol=2e-9)
    np.testing.assert_allclose(moments.std, np.sqrt(together.var(0) + 1e-8), rtol=2e-9)


def test_a_mean_far_from_zero_leaves_the_variance_accurate() -> None:
    # Only the first merge is about 0. There a variance near 1 is what is left of squares of 1e12, which a float64 holds to
    # 1e12 · 2⁻⁵² = 2e-4; the merges after it are exact, so the error fades.
    rows, valid = rows_of(1e6, 1.0)
    moments = merged(rows, valid)
    together = rows[valid].numpy()
    np.testing.assert_allclose(moments.mean, together.mean(0), rtol=1e-13)
    np.testing.assert_allclose(moments.std, together.std(0), rtol=2e-4)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_bits_do_not_depend_on_the_number_of_ranks(ranks: int) -> None:
    rows, valid = rows_of(2.0, 3.0)
    moments = RunningStatistics(SIZE)
    for batch, which in zip(rows, valid, strict=True):
        own = SHARDS // ranks  # every rank makes the sums of the shards that it carries, in its own copy of the moments
        gathered = []
        for rank in range(ranks):
            mine = RunningStatistics(SIZE)
            mine.load(moments.state())
            gathered += [mine.sums(batch[shard], which[shard]) for shard in range(rank * own, (rank + 1) * own)]
        moments.merge(ordered_sum(torch.stack(gathered)), moments.mean)
    expected = merged(rows, valid)
    assert all(
        torch.equal(mine, theirs)
        for mine, theirs in zip(moments.state().values(), expected.state().values(), strict=True)
    )


def test_rows_that_do_not_count_change_nothing() -> None:
    rows, valid = rows_of(0.0, 1.0)
    other = torch.where(valid.unsqueeze(-1), rows, 1e9)
    one, two = merged(rows, valid), merged(other, valid)
    assert torch.equal(one.mean, two.mean)
    assert torch.equal(one.squares, two.squares)


def test_by_hand() -> None:
    # 1, 2 and 6: mean 3, squares of deviations 4 + 1 + 9 = 14; then 7: mean 4, squares 9 + 4 + 4 + 9 = 26
    moments = RunningStatistics(1)
    moments.merge(
        moments.sums(torch.tensor([[1.0], [2.0], [6.0], [99.0]]), torch.tensor([True, True, True, False])), moments.mean
    )
    assert [x.item() for x in moments.state().values()] == [3, 3, 14]
    moments.merge(moments.sums(torch.tensor([[7.0]]), torch.tensor([True])), moments.mean)
    assert [x.item() for x in moments.state().values()] == [4, 4, 26]


def test_nothing_merged_means_nothing_changed() -> None:
    moments = RunningStatistics(2)
    moments.merge(moments.sums(torch.ones(3, 2), torch.zeros(3, dtype=torch.bool)), moments.mean)
    assert moments.std.tolist() == [1, 1]
    assert moments.mean.tolist() == [0, 0]


def test_a_quantity_that_never_varies_keeps_a_finite_scale() -> None:
    moments = RunningStatistics(1)
    moments.merge(moments.sums(torch.full((10, 1), 0.1), torch.ones(10, dtype=torch.bool)), moments.mean)
    assert moments.std.item() == pytest.approx(1e-4, rel=1e-3)  # √1e-8


def test_sums_may_be_about_an_older_mean() -> None:
    """As those of a player that is an update behind: what comes of it is the same, to rounding."""
    rows, valid = rows_of(50.0, 2.0)
    moments, about = RunningStatistics(SIZE), torch.zeros(SIZE, dtype=torch.float64)
    for batch, which in zip(rows.flatten(1, 2), valid.flatten(1), strict=True):
        older = RunningStatistics(SIZE)
        older.mean = about
        about = moments.mean
        moments.merge(older.sums(batch, which), older.mean)
    together = rows[valid].numpy()
    np.testing.assert_allclose(moments.mean, together.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.squares / moments.count, together.var(0), rtol=1e-9)


def test_rows_that_do_not_count_may_be_anything_in_any_block() -> None:
    count = 2 * _BLOCK + 7
    rows = torch.from_numpy(stream(1, "test").normal(2, 3, (count, SIZE)))
    valid = torch.from_numpy(stream(2, "test").random(count) < 0.5)
    rows[~valid] = torch.nan
    moments = RunningStatistics(SIZE)
    moments.load({**moments.state(), "mean": torch.full((SIZE,), 2.0, dtype=torch.float64)})
    kept = rows[valid] - 2.0
    expected = [len(kept), *kept.sum(0), *kept.square().sum(0)]
    assert moments.sums(rows, valid).tolist() == pytest.approx([float(x) for x in expected], rel=1e-12)
