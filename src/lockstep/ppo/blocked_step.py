"""The optimizer step for networks without kernels: the operations of `StepFormula`, in place and in blocks that fit in the cache."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.ppo.formula import BETA1, BETA2, StepFormula

__all__ = ["BlockedStep"]

_BLOCK = 2**15
"""Weights per block: the six arrays of a block have 768 KiB in float32."""


class BlockedStep:
    """Kernel of a `StepFormula` on the CPU, with bit-identical results.

    The formula itself would allocate and pass over a dozen arrays `[P]`, which takes twice as long with 1.7 million weights.
    The results are valid until the next call, and the moments until the call after it.
    """

    def __init__(self, formula: StepFormula, examples: Sequence[Tensor]) -> None:
        """Allocate arrays for arguments with the shapes and dtypes of the examples."""
        weights, _, _, total, _ = examples
        self._formula = formula
        self._mean = torch.empty_like(total)
        self._weights = torch.empty_like(weights)
        self._moments = [(torch.empty_like(weights), torch.empty_like(weights)) for _ in range(2)]
        self._change, self._deviation = weights.new_empty(2, min(_BLOCK, len(weights))).unbind()

    def __call__(
        self, weights: Tensor, first: Tensor, second: Tensor, total: Tensor, numbers: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the step; see `StepFormula`."""
        formula, size = self._formula, len(weights)
        count, limit = numbers[0], numbers[1]
        torch.div(total, count, out=self._mean)
        ends = [sum(formula.sizes[: group + 1]) for group in range(len(formula.sizes))]
        bounds = list(zip([0, *ends], ends, strict=False))
        norm = self._norm(0, ends[formula.clipped - 1] if formula.clipped else 0)
        norms = [self._norm(*group) if formula.separately else norm for group in bounds[: formula.clipped]]
        scales = [(limit / (part_norm + 1e-6)).clamp_max(1) for part_norm in norms]
        # the moments of the last accepted step are an argument, so the others are free
        is_free = self._moments[0][0].data_ptr() != first.data_ptr()
        new_first, new_second = self._moments[0 if is_free else 1]
        for group, (start, end) in enumerate(bounds):
            group_numbers = numbers[2 + 3 * group : 5 + 3 * group].unbind()
            for begin in range(start, end, _BLOCK):
                block = slice(begin, min(begin + _BLOCK, end))
                if group < formula.clipped:
                    self._mean[block].mul_(scales[group])
                inputs = [tensor[block] for tensor in (weights, first, second, self._mean)]
                results = [tensor[block] for tensor in (self._weights, new_first, new_second)]
                self._step_block(inputs, group_numbers, results)
        statistics = torch.cat([self._mean[size:], norm.view(1)])
        return self._weights, new_first, new_second, statistics

    def _norm(self, start: int, end: int) -> Tensor:
        """Return the norm of a range of the mean gradient. The new weights, which are computed later, hold the squares."""
        return torch.square(self._mean[start:end], out=self._weights[start:end]).sum().sqrt()

    def _step_block(self, inputs: Sequence[Tensor], numbers: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Compute `StepFormula._step_part` for a block, in the same order of operations."""
        weights, first, second, gradient = inputs
        new_weights, new_first, new_second = results
        on, rate, scale = numbers
        change, deviation = self._change[: len(weights)], self._deviation[: len(weights)]
        torch.sub(gradient, first, out=change).mul_((1 - BETA1) * on)
        torch.add(first, change, out=new_first)
        torch.square(gradient, out=change).sub_(second).mul_((1 - BETA2) * on)
        torch.add(second, change, out=new_second)
        torch.sqrt(new_second, out=deviation).mul_(scale).add_(self._formula.epsilon)
        torch.mul(new_first, on * rate, out=change).div_(deviation)
        torch.sub(weights, change, out=new_weights)
