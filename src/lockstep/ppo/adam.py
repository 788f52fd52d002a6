"""Adam on slices of one flat buffer."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from lockstep.compiling.kernels import MakeKernel, eager
from lockstep.ppo.blocked_step import BlockedStep
from lockstep.ppo.formula import BETA1, BETA2, StepFormula

__all__ = ["Adam"]

_SAFE_RATE = 1e30
"""Largest learning rate with which no step makes finite weights infinite: a step changes a weight by a few times the rate."""


class Adam:
    """Adam optimizer for the parameter groups (policy, critic) of one flat tensor of weights.

    Each group has its own learning rate. A step may leave out groups; their weights and moments stay unchanged. A step is
    first proposed, so that the caller can examine its statistics, and takes effect only if it is accepted.
    """

    def __init__(
        self,
        weights: Tensor,
        groups: Mapping[str, int],
        epsilon: float,
        limit: float | None = None,
        others: int = 0,
        make_kernel: MakeKernel = eager,
        unclipped: int = 0,
        separately: bool = False,
    ) -> None:
        """Create the state and the kernel of the optimizer for `weights` `[P]`, which are updated in place.

        `groups` are sizes by name, in the order of `weights`; the last `unclipped` are neither clipped nor counted in the norm. `limit` is the
        largest norm of the gradient, None: not clipped; with `separately`, each group is clipped by its own norm. `others` is the number `S` of
        other sums that follow the gradient. `make_kernel` makes the kernel of `StepFormula`.
        """
        self._weights = weights
        self._limit = math.inf if limit is None else limit
        self.first = torch.zeros_like(weights)
        self.second = torch.zeros_like(weights)
        self.steps = dict.fromkeys(groups, 0)
        # on the CPU, and filled by NumPy: a new tensor for each step takes longer
        self._numbers = torch.zeros(2 + 3 * len(groups), dtype=weights.dtype, device="cpu")
        self._number_array = self._numbers.numpy()
        numbers = self._numbers.to(weights.device)
        examples = (weights, self.first, self.second, weights.new_zeros(len(weights) + others), numbers)
        formula = StepFormula(tuple(groups.values()), epsilon, len(groups) - unclipped, separately)
        is_blocked = make_kernel is eager and weights.device.type == "cpu"
        self._kernel = BlockedStep(formula, examples) if is_blocked else make_kernel(formula, examples)
        self._proposed: tuple[Tensor, Tensor, Tensor] | None = None
        self._stepped: tuple[str, ...] = ()
        self._largest_rate = 0.0

    def propose(self, total: Tensor, count: float, rates: Mapping[str, float]) -> list[float]:
        """Compute a step of the groups in `rates`, which maps each to its learning rate, and keep it for `accept`.

        `total` are the sums `[P + S]` over `count` samples. Returns the means of the other S sums and, last, the norm
        of the gradient before clipping.
        """
        numbers = [count, self._limit]
        for name, steps in self.steps.items():
            bias1, bias2 = 1 - BETA1 ** (steps + 1), 1 - BETA2 ** (steps + 1)
            numbers += [1, rates[name] / bias1, 1 / math.sqrt(bias2)] if name in rates else [0, 0, 1]
        with np.errstate(over="ignore"):
            self._number_array[:] = numbers
        numbers_of_kernel = self._numbers.to(total.device)
        *proposed, statistics = self._kernel(self._weights, self.first, self.second, total, numbers_of_kernel)
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
        return {"first": self.first.to("cpu", copy=True), "second": self.second.to("cpu", copy=True), **steps}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore moments and numbers of steps from the result of `state()`."""
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])
        for name in self.steps:
            self.steps[name] = int(state[f"steps.{name}"].item())
