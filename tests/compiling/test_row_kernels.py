"""Blocks of rows: their sizes do not change the results, and few kernels are traced for many numbers of rows."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from lockstep.compiling import row_kernels
from lockstep.compiling.kernels import MOST_ROWS, Formula, InterpretedKernel
from lockstep.compiling.row_kernels import RowKernels

COLUMNS = 3


def formula(rows: Tensor, factors: Tensor) -> tuple[Tensor, ...]:
    return torch.tanh(rows) * factors, rows.sum(1)


def arguments_of(count: int) -> tuple[Tensor, Tensor]:
    rows = torch.arange(count * COLUMNS, dtype=torch.float64).view(count, COLUMNS)
    return torch.sin(rows), torch.cos(rows)


@pytest.mark.parametrize("count", [1, 15, 16, 17, MOST_ROWS - 1, MOST_ROWS, MOST_ROWS + 1, 3 * MOST_ROWS - 5, 2000])
def test_blocks_give_the_results_of_single_rows(count: int) -> None:
    kernels, arguments = RowKernels(), arguments_of(count)
    found = kernels.compute("name", formula, *arguments)
    rows = [
        kernels.compute("name", formula, *(argument[row : row + 1] for argument in arguments)) for row in range(count)
    ]
    for result, single in zip(found, zip(*rows, strict=True), strict=True):
        assert torch.equal(result, torch.cat(single))


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows for which kernels have been traced."""
    traced: list[int] = []

    def make(formula: Formula, examples: Sequence[Tensor]) -> InterpretedKernel:
        traced.append(len(examples[0]))
        return InterpretedKernel(formula, examples)

    monkeypatch.setattr(row_kernels, "InterpretedKernel", make)
    return traced


def test_many_numbers_of_rows_need_few_kernels(sizes: list[int]) -> None:
    kernels = RowKernels()
    for count in range(1500, 2100):  # as with plan.preempt, where unfinished steps are left out
        kernels.compute("name", formula, *arguments_of(count))
    assert 0 < len(sizes) <= 4, sizes
    assert max(sizes) <= MOST_ROWS


def test_blocks_of_images_are_smaller(sizes: list[int]) -> None:
    images = torch.ones(70, 3 * 512 * 512)  # 5 rows are more than the greatest number of elements of a block
    (found,) = RowKernels().compute("name", lambda rows: (rows.sum(1),), images)
    assert torch.equal(found, images.sum(1))
    assert sizes == [5]
