"""Interpreted kernels of functions of rows, in blocks that stay in the cache."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.compiling.kernels import Formula, InterpretedKernel, rows_per_call
from lockstep.processes.heartbeat import beat

__all__ = ["RowKernels"]


class RowKernels:
    """Kernels of formulas, by name. Each is traced when it is first used with arguments of a shape.

    They read the tensors that a formula holds, such as weights, in place, so that they follow training and loading. Their results have the
    same bits on every processor.
    """

    def __init__(self) -> None:
        self._kernels: dict[tuple[Hashable, ...], InterpretedKernel] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "RowKernels":
        """Return an object without kernels, because these read the tensors of the original."""
        return RowKernels()

    def compute(self, name: Hashable, formula: Formula, *arguments: Tensor) -> list[Tensor]:
        """Compute a formula of rows `[N, …]`, whose results are `[N, …]`, in blocks of one size. N must not be 0.

        The rows must be independent: if N is not a multiple of the size, the last block overlaps the one before.
        """
        arguments, count = tuple(argument.contiguous() for argument in arguments), len(arguments[0])
        size = _block_size(count, rows_per_call(*arguments))
        results: list[Tensor] = []
        for begin in range(0, count, size):
            beat()  # all images of a rollout take long
            start = min(begin, count - size)
            block = [argument[start : start + size] for argument in arguments]
            kernel = self.kernel(name, formula, block)
            results = results or [arguments[0].new_empty(count, *shape[1:]) for shape in kernel.shapes]
            kernel.write(block, [result[start : start + size] for result in results])
        return results

    def kernel(self, name: Hashable, formula: Formula, arguments: Sequence[Tensor]) -> InterpretedKernel:
        """Return the kernel of a formula for arguments of these shapes."""
        key = name, *(argument.shape for argument in arguments)
        if key not in self._kernels:
            with torch.no_grad():
                self._kernels[key] = InterpretedKernel(formula, arguments)
        return self._kernels[key]


def _block_size(count: int, most: int) -> int:
    """Return the number of rows of each block of `count` rows, at most `most`.

    Sizes are multiples of 16 where possible, so that few kernels are traced if the number of rows is another one in each iteration (`plan.preempt`).
    """
    even = math.ceil(count / math.ceil(count / most))
    return min(count, most, math.ceil(even / 16) * 16)
