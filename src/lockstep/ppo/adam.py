"""Adam on slices of one flat buffer."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["Adam"]

BETA1, BETA2 = 0.9, 0.999


class Adam:
    """Adam (Kingma & Ba 2015, arXiv:1412.6980, algorithm 1), written on flat memory: six operations per step whatever the
    number of layers. Parts (policy, critic) can be stepped at their own rates and times; a part that is not stepped stays as
    it is, moments included.
    """

    def __init__(self, weights: Tensor, parts: Mapping[str, slice], epsilon: float) -> None:
        """`weights` `[N]` is updated in place; `parts` names slices of it."""
        self._weights = weights
        self._parts = dict(parts)
        self._epsilon = epsilon
        self.first = torch.zeros_like(weights)
        self.second = torch.zeros_like(weights)
        self.steps = dict.fromkeys(parts, 0)

    @torch.no_grad()
    def step(self, gradient: Tensor, rates: Mapping[str, float]) -> None:
        """One step of the parts named in `rates`, each at its learning rate. `gradient` is `[N]`."""
        for name, rate in rates.items():
            part = self._parts[name]
            self.steps[name] += 1
            now, first, second = gradient[part], self.first[part], self.second[part]
            first.lerp_(now, 1 - BETA1)
            second.mul_(BETA2).addcmul_(now, now, value=1 - BETA2)
            scale = math.sqrt(1 - BETA2 ** self.steps[name])
            root = second.sqrt().div_(scale).add_(self._epsilon)
            self._weights[part].addcdiv_(first, root, value=-rate / (1 - BETA1 ** self.steps[name]))

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
