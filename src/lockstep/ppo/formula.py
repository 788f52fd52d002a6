"""The formula of one optimizer step on flat tensors: mean of the gradients, clipping, and Adam."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BETA1", "BETA2", "StepFormula"]

BETA1, BETA2 = 0.9, 0.999


@dataclass(frozen=True)
class StepFormula:
    """Formula of one optimizer step on flat tensors: mean of the gradients, clipping, and Adam.

    Adam is algorithm 1 of Kingma & Ba 2015 (arXiv:1412.6980).

    Inputs: the weights, first and second moments, `[P]` each; the sums over all samples `[P + S]`, of which the first P
    are the gradient; and numbers `[2 + 3 * groups]`: the number of samples, the largest gradient norm, and for each group
    a flag (1 to step the group, 0 to leave it unchanged), its learning rate over (1 - β₁ᵗ), and 1 / √(1 - β₂ᵗ), the bias
    corrections of Adam.

    Outputs: the new weights, first and second moments, `[P]` each; and `[S + 1]`: the means of the other S sums, then
    the norm of the gradient before clipping.
    """

    sizes: tuple[int, ...]
    """Sizes of the parameter groups, which add up to P."""
    epsilon: float
    clipped: int
    """Number of leading groups whose gradients are clipped by their common norm. Other gradients are not clipped."""
    separately: bool = False
    """Clip each of these groups by its own norm instead."""

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute the step; the inputs and outputs are described in the class."""
        weights, first, second, total, numbers = tensors
        count, limit = numbers[0], numbers[1]
        mean = total / count
        gradient, others = mean.split([len(weights), len(total) - len(weights)])
        groups = gradient.split(self.sizes)
        clipped, unclipped = groups[: self.clipped], groups[self.clipped :]
        norm = _norm(clipped)
        norms = [_norm([group]) for group in clipped] if self.separately else [norm] * self.clipped
        scales = [(limit / (part_norm + 1e-6)).clamp_max(1) for part_norm in norms]
        gradients = [*(group * scale for group, scale in zip(clipped, scales, strict=True)), *unclipped]
        before = [tensor.split(self.sizes) for tensor in (weights, first, second)]
        part_inputs = zip(*before, gradients, numbers[2:].view(-1, 3).unbind(), strict=True)
        stepped = [self._step_part(*inputs) for inputs in part_inputs]
        new_weights, first, second = (_concatenate(after) for after in zip(*stepped, strict=True))
        return new_weights, first, second, torch.cat([others, norm.view(1)])

    def _step_part(
        self, weights: Tensor, first: Tensor, second: Tensor, gradient: Tensor, numbers: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the new weights, first and second moments of one group.

        Groups are stepped one by one, so that the numbers of a group need not be expanded to `[P]`.
        """
        on, rate, scale = numbers.unbind()
        first = first + (1 - BETA1) * on * (gradient - first)
        second = second + (1 - BETA2) * on * (gradient.square() - second)
        return weights - on * rate * first / (second.sqrt() * scale + self.epsilon), first, second


def _norm(groups: Sequence[Tensor]) -> Tensor:
    return _concatenate(groups).square().sum().sqrt()


def _concatenate(groups: Sequence[Tensor]) -> Tensor:
    """Concatenate the groups. A single group is returned without a copy, which would take a fifth of a step."""
    return groups[0] if len(groups) == 1 else torch.cat(list(groups))
