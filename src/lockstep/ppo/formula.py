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
    are the gradient; and numbers `[2 + 3 * parts]`: the number of samples, the largest gradient norm, and for each part
    a flag (1 to step the part, 0 to leave it unchanged), its learning rate over (1 - β₁ᵗ), and 1 / √(1 - β₂ᵗ), the bias
    corrections of Adam.

    Outputs: the new weights, first and second moments, `[P]` each; and `[S + 1]`: the means of the other S sums, then
    the norm of the gradient before clipping.
    """

    sizes: tuple[int, ...]
    """Sizes of the parts, which add up to P."""
    epsilon: float
    clipped: int
    """Number of leading parts whose gradients are clipped by their common norm. Other gradients are not clipped."""
    separately: bool = False
    """Clip each of these parts by its own norm instead."""

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute the step; the inputs and outputs are described in the class."""
        weights, first, second, total, numbers = tensors
        count, limit = numbers[0], numbers[1]
        mean = total / count
        gradient, others = mean.split([len(weights), len(total) - len(weights)])
        parts = gradient.split(self.sizes)
        clipped, unclipped = parts[: self.clipped], parts[self.clipped :]
        norm = _norm(clipped)
        norms = [_norm([part]) for part in clipped] if self.separately else [norm] * self.clipped
        scales = [(limit / (part_norm + 1e-6)).clamp_max(1) for part_norm in norms]
        gradients = [*(part * scale for part, scale in zip(clipped, scales, strict=True)), *unclipped]
        before = [tensor.split(self.sizes) for tensor in (weights, first, second)]
        part_inputs = zip(*before, gradients, numbers[2:].view(-1, 3).unbind(), strict=True)
        stepped = [self._step_part(*inputs) for inputs in part_inputs]
        new_weights, first, second = (_concatenate(after) for after in zip(*stepped, strict=True))
        return new_weights, first, second, torch.cat([others, norm.view(1)])

    def _step_part(
        self, weights: Tensor, first: Tensor, second: Tensor, gradient: Tensor, numbers: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the new weights, first and second moments of one part.

        Parts are stepped one by one, so that the numbers of a part need not be expanded to `[P]`.
        """
        on, rate, scale = numbers.unbind()
        first = first + (1 - BETA1) * on * (gradient - first)
        second = second + (1 - BETA2) * on * (gradient.square() - second)
        return weights - on * rate * first / (second.sqrt() * scale + self.epsilon), first, second


def _norm(parts: Sequence[Tensor]) -> Tensor:
    return _concatenate(parts).square().sum().sqrt()


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate the parts. A single part is returned without a copy, which would take a fifth of a step."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
