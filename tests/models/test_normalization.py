"""Tests of running statistics: equal to NumPy's, and independent of the number of ranks."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.group.group import ordered_sum
from lockstep.models.normalization import _BLOCK, RunningStatistics
from lockstep.randomness import stream

SHARDS, ROWS, SIZE, ITERATIONS = 4, 50, 3, 5


def rows_of(mean: float, std: float) -> tuple[Tensor, Tensor]:
    """Return rows `[iterations, shards, rows, size]` and bool flags of the valid rows."""
    drawn = stream(1, "test").normal(mean, std, (ITERATIONS, SHARDS, ROWS, SIZE))
    return torch.from_numpy(drawn), torch.from_numpy(stream(2, "test").random((ITERATIONS, SHARDS, ROWS)) < 0.8)


def merged(rows: Tensor, valid: Tensor) -> RunningStatistics:
    statistics = RunningStatistics(SIZE)
    for batch, valid_rows in zip(rows, valid, strict=True):
        total = ordered_sum(torch.stack([statistics.sums(*shard) for shard in zip(batch, valid_rows, strict=True)]))
        statistics.merge(total, statistics.mean)
    return statistics


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (-3.0, 1e-3), (5.0, 200.0)])
def test_statistics_equal_those_of_numpy(mean: float, std: float) -> None:
    rows, valid = rows_of(mean, std)
    statistics = merged(rows, valid)
    all_rows = rows[valid].numpy()
    assert statistics.count.item() == len(all_rows)
    np.testing.assert_allclose(statistics.mean, all_rows.mean(0), rtol=1e-12, atol=1e-14)
    # The first merge uses deviations from 0. Float64 holds their squares, near 9, to 9 · 2⁻⁵² = 2e-15. Relative to the variance
    # of 1e-6 that is 2e-9.
    np.testing.assert_allclose(statistics.squares / statistics.count, all_rows.var(0), rtol=2e-9)
    np.testing.assert_allclose(statistics.std, np.sqrt(all_rows.var(0) + 1e-8), rtol=2e-9)


def test_the_variance_is_accurate_for_a_mean_far_from_zero() -> None:
    # Only the first merge uses deviations from 0. Float64 holds their squares, near 1e12, to 1e12 · 2⁻⁵² = 2e-4, and the variance
    # is near 1. Later merges are exact, so the error fades.
    rows, valid = rows_of(1e6, 1.0)
    statistics = merged(rows, valid)
    all_rows = rows[valid].numpy()
    np.testing.assert_allclose(statistics.mean, all_rows.mean(0), rtol=1e-13)
    np.testing.assert_allclose(statistics.std, all_rows.std(0), rtol=2e-4)


@pytest.mark.parametrize("size", [2, 3, 17, 64])
def test_rows_are_added_in_their_order_on_every_processor(size: int) -> None:
    rows = torch.from_numpy(stream(3, "test").normal(1.0, 5.0, (2 * _BLOCK + 5, size)))
    valid = torch.from_numpy(stream(4, "test").random(len(rows)) < 0.8)
    statistics, expected = RunningStatistics(size), torch.zeros(2, size, dtype=torch.float64)
    statistics.mean += 0.1
    for start in range(0, len(rows), _BLOCK):
        totals = torch.zeros(2, size, dtype=torch.float64)
        for row, is_valid in zip(rows[start : start + _BLOCK], valid[start : start + _BLOCK], strict=True):
            if is_valid:
                totals += torch.stack([row - statistics.mean, (row - statistics.mean) ** 2])
        expected += totals
    assert torch.equal(statistics.sums(rows, valid), torch.cat([valid.sum(0, keepdim=True).double(), *expected]))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_bits_do_not_depend_on_the_number_of_ranks(ranks: int) -> None:
    rows, valid = rows_of(2.0, 3.0)
    statistics = RunningStatistics(SIZE)
    for batch, valid_rows in zip(rows, valid, strict=True):
        # every rank computes the sums of its shards, from its own copy of the statistics
        shards_per_rank = SHARDS // ranks
        gathered = []
        for rank in range(ranks):
            copy = RunningStatistics(SIZE)
            copy.load(statistics.state())
            gathered += [
                copy.sums(batch[shard], valid_rows[shard])
                for shard in range(rank * shards_per_rank, (rank + 1) * shards_per_rank)
            ]
        statistics.merge(ordered_sum(torch.stack(gathered)), statistics.mean)
    expected = merged(rows, valid)
    assert all(
        torch.equal(value, expected_value)
        for value, expected_value in zip(statistics.state().values(), expected.state().values(), strict=True)
    )


def test_invalid_rows_change_nothing() -> None:
    rows, valid = rows_of(0.0, 1.0)
    other = torch.where(valid.unsqueeze(-1), rows, 1e9)
    first, second = merged(rows, valid), merged(other, valid)
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.squares, second.squares)


def test_values_computed_by_hand() -> None:
    # 1, 2 and 6: mean 3, squares of deviations 4 + 1 + 9 = 14; then 7: mean 4, squares 9 + 4 + 4 + 9 = 26
    statistics = RunningStatistics(1)
    statistics.merge(
        statistics.sums(torch.tensor([[1.0], [2.0], [6.0], [99.0]]), torch.tensor([True, True, True, False])),
        statistics.mean,
    )
    assert [x.item() for x in statistics.state().values()] == [3, 3, 14]
    statistics.merge(statistics.sums(torch.tensor([[7.0]]), torch.tensor([True])), statistics.mean)
    assert [x.item() for x in statistics.state().values()] == [4, 4, 26]


def test_merging_no_valid_rows_changes_nothing() -> None:
    statistics = RunningStatistics(2)
    statistics.merge(statistics.sums(torch.ones(3, 2), torch.zeros(3, dtype=torch.bool)), statistics.mean)
    assert statistics.std.tolist() == [1, 1]
    assert statistics.mean.tolist() == [0, 0]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_total_that_is_not_finite_changes_nothing(value: float) -> None:
    statistics = RunningStatistics(2)
    rows = torch.randn(8, 2)
    statistics.merge(statistics.sums(rows, torch.ones(8, dtype=torch.bool)), statistics.mean)
    before = {name: tensor.clone() for name, tensor in statistics.state().items()}
    rows[3, 1] = value
    statistics.merge(statistics.sums(rows, torch.ones(8, dtype=torch.bool)), statistics.mean)
    assert all(torch.equal(tensor, before[name]) for name, tensor in statistics.state().items())


def test_a_constant_quantity_has_a_positive_std() -> None:
    statistics = RunningStatistics(1)
    statistics.merge(statistics.sums(torch.full((10, 1), 0.1), torch.ones(10, dtype=torch.bool)), statistics.mean)
    assert statistics.std.item() == pytest.approx(1e-4, rel=1e-3)  # √1e-8


def test_sums_may_refer_to_an_older_mean() -> None:
    """A player may be one update behind; the result is the same up to rounding."""
    rows, valid = rows_of(50.0, 2.0)
    statistics, old_mean = RunningStatistics(SIZE), torch.zeros(SIZE, dtype=torch.float64)
    for batch, valid_rows in zip(rows.flatten(1, 2), valid.flatten(1), strict=True):
        old_statistics = RunningStatistics(SIZE)
        old_statistics.mean = old_mean
        old_mean = statistics.mean
        statistics.merge(old_statistics.sums(batch, valid_rows), old_statistics.mean)
    all_rows = rows[valid].numpy()
    np.testing.assert_allclose(statistics.mean, all_rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.squares / statistics.count, all_rows.var(0), rtol=1e-9)


def test_invalid_rows_may_be_nan_in_any_block() -> None:
    count = 2 * _BLOCK + 7
    rows = torch.from_numpy(stream(1, "test").normal(2, 3, (count, SIZE)))
    valid = torch.from_numpy(stream(2, "test").random(count) < 0.5)
    rows[~valid] = torch.nan
    statistics = RunningStatistics(SIZE)
    statistics.load({**statistics.state(), "mean": torch.full((SIZE,), 2.0, dtype=torch.float64)})
    valid_deviations = rows[valid] - 2.0
    expected = [len(valid_deviations), *valid_deviations.sum(0), *valid_deviations.square().sum(0)]
    assert statistics.sums(rows, valid).tolist() == pytest.approx([float(x) for x in expected], rel=1e-12)
