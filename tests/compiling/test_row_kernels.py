"""Blocks of rows: their sizes do not change the results, and few kernels are traced for many numbers of rows."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from lockstep.compiling.kernels import MOST_ROWS, Formula, InterpretedKernel, interpreted
from lockstep.compiling.row_kernels import RowKernels

COLUMNS = 3


def formula(rows: Tensor, factors: Tensor) -> tuple[Tensor, ...]:
    return torch.tanh(rows) * factors, rows.sum(1)


def arguments_of(count: int) -> tuple[Tensor, Tensor]:
    rows = torch.arange(count * COLUMNS, dtype=torch.float64).view(count, COLUMNS)
    return torch.sin(rows), torch.cos(rows)


@pytest.mark.parametrize("count", [1, 15, 16, 17, MOST_ROWS - 1, MOST_ROWS, MOST_ROWS + 1, 3 * MOST_ROWS - 5, 2000])
def test_blocks_give_the_results_of_single_rows(count: int) -> None:
    kernels, arguments = RowKernels(interpreted), arguments_of(count)
    found = kernels.compute("name", formula, *arguments)
    rows = [
        kernels.compute("name", formula, *(argument[row : row + 1] for argument in arguments)) for row in range(count)
    ]
    for result, single in zip(found, zip(*rows, strict=True), strict=True):
        assert torch.equal(result, torch.cat(single))


def test_many_numbers_of_rows_need_few_kernels() -> None:
    made: list[int] = []

    def make(formula: Formula, examples: Sequence[Tensor], packs_weights: bool = False) -> InterpretedKernel:
        made.append(len(examples[0]))
        return interpreted(formula, examples, packs_weights)

    kernels = RowKernels(make)
    for count in range(1500, 2100):  # as with plan.preempt, where unfinished steps are left out
        kernels.compute("name", formula, *arguments_of(count))
    assert len(made) <= 4, made
    assert max(made) <= MOST_ROWS


def test_blocks_of_images_are_smaller() -> None:
    made: list[int] = []

    def make(formula: Formula, examples: Sequence[Tensor], packs_weights: bool = False) -> InterpretedKernel:
        made.append(len(examples[0]))
        return interpreted(formula, examples, packs_weights)

    images = torch.ones(70, 3 * 512 * 512)  # 5 rows are more than the greatest number of elements of a block
    (found,) = RowKernels(make).compute("name", lambda rows: (rows.sum(1),), images)
    assert torch.equal(found, images.sum(1))
    assert made == [5]
