"""Adam on slices of one flat buffer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.compiling.kernels import MakeKernel, eager

__all__ = ["Adam", "StepFormula"]

BETA1, BETA2 = 0.9, 0.999


@dataclass(frozen=True)
class StepFormula:
    """Average, clip, and Adam (Kingma & Ba 2015, arXiv:1412.6980, algorithm 1) on flat memory, whatever the number of layers.

    Takes weights, first and second moments, each `[P]`, the sums over all samples `[P + S]`, of which the first P are the gradient's,
    and numbers: the count of samples, the largest norm, and for each part whether it is stepped (1 or 0), its learning rate and a factor
    of the root of its second moment. Gives new weights and moments, and `[S + 1]`: the other means, then the gradient's norm.
    """

    sizes: tuple[int, ...]
    """Of the parts."""
    epsilon: float
    clipped: int
    """Parts whose gradients have one norm, which is clipped; those behind them are left as they are."""
    name = "optimizer's step"

    @property
    def key(self) -> str:
        """See `Formula.key`."""
        return repr(self)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        weights, first, second, total, numbers = tensors
        count, limit = numbers[0], numbers[1]
        mean = total / count
        gradient, others = mean.split([len(weights), len(total) - len(weights)])
        parts = gradient.split(self.sizes)
        norm = _joined(parts[: self.clipped]).square().sum().sqrt()
        scale = (limit / (norm + 1e-6)).clamp_max(1)
        gradients = [part * scale if place < self.clipped else part for place, part in enumerate(parts)]
        before = [memory.split(self.sizes) for memory in (weights, first, second)]
        stepped = [self._step(*of) for of in zip(*before, gradients, numbers[2:].view(-1, 3).unbind(), strict=True)]
        moved, first, second = (_joined(after) for after in zip(*stepped, strict=True))
        return moved, first, second, torch.cat([others, norm.view(1)])

    def _step(
        self, weights: Tensor, first: Tensor, second: Tensor, gradient: Tensor, numbers: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of one part: each with its own numbers, so that none has to be spread over its weights."""
        on, rate, scale = numbers.unbind()
        first = first + (1 - BETA1) * on * (gradient - first)
        second = second + (1 - BETA2) * on * (gradient.square() - second)
        return weights - on * rate * first / (second.sqrt() * scale + self.epsilon), first, second


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One after the other; one alone is not copied, which takes a fifth of a step."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class Adam:
    """Parts (policy, critic) can be stepped at their own rates and times; a part that is not stepped stays as it is, moments included.

    A step is first proposed, so that it can be judged by what it would do, and then accepted or not.
    """

    def __init__(
        self,
        weights: Tensor,
        parts: Mapping[str, int],
        epsilon: float,
        limit: float | None = None,
        others: int = 0,
        make_kernel: MakeKernel = eager,
        free: int = 0,
    ) -> None:
        """`weights` `[P]` is updated in place; `parts` gives sizes of its parts, one after the other. `limit` is the largest
        norm of the gradient, `others` how many other sums come behind it. The last `free` parts have no share in the norm.
        """
        self._weights = weights
        self._limit = math.inf if limit is None else limit
        self.first = torch.zeros_like(weights)
        self.second = torch.zeros_like(weights)
        self.steps = dict.fromkeys(parts, 0)
        numbers = weights.new_zeros(2 + 3 * len(parts))
        examples = (weights, self.first, self.second, weights.new_zeros(len(weights) + others), numbers)
        self._kernel = make_kernel(StepFormula(tuple(parts.values()), epsilon, len(parts) - free), examples)
        self._proposed: tuple[Tensor, Tensor, Tensor] | None = None
        self._stepped: tuple[str, ...] = ()

    def propose(self, total: Tensor, count: float, rates: Mapping[str, float]) -> list[float]:
        """A step of the parts named in `rates`, each at its learning rate, by sums `[P + S]` over `count` samples.

        Returns the other means and, last, the norm of the gradient before it was clipped.
        """
        numbers = [count, self._limit]
        for name, steps in self.steps.items():
            bias1, bias2 = 1 - BETA1 ** (steps + 1), 1 - BETA2 ** (steps + 1)
            numbers += [1, rates[name] / bias1, 1 / math.sqrt(bias2)] if name in rates else [0, 0, 1]
        arguments = torch.tensor(numbers, dtype=total.dtype, device=total.device)
        *proposed, found = self._kernel(self._weights, self.first, self.second, total, arguments)
        self._proposed, self._stepped = (proposed[0], proposed[1], proposed[2]), tuple(rates)
        means: list[float] = found.tolist()
        return means

    def accept(self) -> None:
        """Takes the step that was proposed last."""
        assert self._proposed is not None
        weights, self.first, self.second = self._proposed
        self._weights.copy_(weights)
        self._proposed = None
        for name in self._stepped:
            self.steps[name] += 1

    def state(self) -> dict[str, Tensor]:
        """All that a checkpoint needs, by name."""
        steps = {f"steps.{name}": torch.tensor([count]) for name, count in self.steps.items()}
        return {"first": self.first.cpu(), "second": self.second.cpu(), **steps}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes back `state()`."""
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])
        for name in self.steps:
            self.steps[name] = int(state[f"steps.{name}"].item())
