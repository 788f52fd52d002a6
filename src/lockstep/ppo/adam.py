"""Adam on slices of one flat buffer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.compiling.kernels import MakeKernel, eager

__all__ = ["Adam", "StepFormula"]

BETA1, BETA2 = 0.9, 0.999
_SAFE_RATE = 1e30
"""Largest learning rate with which no step makes finite weights infinite: a step changes a weight by a few times the rate."""


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

    @property
    def key(self) -> str:
        """See `Formula.key`."""
        return repr(self)

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


class Adam:
    """Adam optimizer for the parts (policy, critic) of one flat tensor of weights.

    Each part has its own learning rate. A step may leave out parts; their weights and moments stay unchanged. A step is
    first proposed, so that the caller can examine its statistics, and takes effect only if it is accepted.
    """

    def __init__(
        self,
        weights: Tensor,
        parts: Mapping[str, int],
        epsilon: float,
        limit: float | None = None,
        others: int = 0,
        make_kernel: MakeKernel = eager,
        unclipped: int = 0,
        separately: bool = False,
    ) -> None:
        """Create the state and the kernel of the optimizer for `weights` `[P]`, which are updated in place.

        `parts` are sizes by name, in the order of `weights`; the last `unclipped` are neither clipped nor counted in the norm. `limit` is the
        largest norm of the gradient, None: not clipped; with `separately`, each part is clipped by its own norm. `others` is the number `S` of
        other sums that follow the gradient. `make_kernel` makes the kernel of `StepFormula`.
        """
        self._weights = weights
        self._limit = math.inf if limit is None else limit
        self.first = torch.zeros_like(weights)
        self.second = torch.zeros_like(weights)
        self.steps = dict.fromkeys(parts, 0)
        numbers = weights.new_zeros(2 + 3 * len(parts))
        examples = (weights, self.first, self.second, weights.new_zeros(len(weights) + others), numbers)
        formula = StepFormula(tuple(parts.values()), epsilon, len(parts) - unclipped, separately)
        self._kernel = make_kernel(formula, examples)
        self._proposed: tuple[Tensor, Tensor, Tensor] | None = None
        self._stepped: tuple[str, ...] = ()
        self._largest_rate = 0.0

    def propose(self, total: Tensor, count: float, rates: Mapping[str, float]) -> list[float]:
        """Compute a step of the parts in `rates`, which maps each to its learning rate, and keep it for `accept`.

        `total` are the sums `[P + S]` over `count` samples. Returns the means of the other S sums and, last, the norm
        of the gradient before clipping.
        """
        numbers = [count, self._limit]
        for name, steps in self.steps.items():
            bias1, bias2 = 1 - BETA1 ** (steps + 1), 1 - BETA2 ** (steps + 1)
            numbers += [1, rates[name] / bias1, 1 / math.sqrt(bias2)] if name in rates else [0, 0, 1]
        arguments = torch.tensor(numbers, dtype=total.dtype, device=total.device)
        *proposed, statistics = self._kernel(self._weights, self.first, self.second, total, arguments)
        self._proposed, self._stepped = (proposed[0], proposed[1], proposed[2]), tuple(rates)
        self._largest_rate = max(rates.values(), default=0.0)
        means: list[float] = statistics.tolist()
        return means

    def overflows(self) -> bool:
        """Return True if the last proposed step makes weights infinite, though its gradient is finite."""
        assert self._proposed is not None
        return self._largest_rate > _SAFE_RATE and not bool(self._proposed[0].isfinite().all())

    def accept(self) -> None:
        """Apply the last proposed step."""
        assert self._proposed is not None
        weights, self.first, self.second = self._proposed
        self._weights.copy_(weights)
        self._proposed = None
        for name in self._stepped:
            self.steps[name] += 1

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint saves, by name."""
        steps = {f"steps.{name}": torch.tensor([count]) for name, count in self.steps.items()}
        return {"first": self.first.cpu(), "second": self.second.cpu(), **steps}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore moments and numbers of steps from the result of `state()`."""
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])
        for name in self.steps:
            self.steps[name] = int(state[f"steps.{name}"].item())
