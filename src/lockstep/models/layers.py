"""Layers whose first weights are drawn from a generator of one's own."""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from torch import nn

__all__ = ["ACTIVATIONS", "TRUNK_GAIN", "Linear", "initialize", "mlp", "seeded"]

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}
TRUNK_GAIN = math.sqrt(2)
"""Of orthogonal weights below a nonlinearity."""

_GLOBAL = Lock()
"""For one thread at a time: they have the generator in common."""


class Linear(nn.Linear):
    """Made without content: nn.Linear would draw its first weights from the global generator."""

    def reset_parameters(self) -> None:
        """Nothing."""


def mlp(widths: tuple[int, ...], activation: type[nn.Module], dtype: torch.dtype) -> nn.Sequential:
    """Layers of these widths, the first of which is the inputs', each with a nonlinearity behind it."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [Linear(inputs, outputs, dtype=dtype), activation()]
    return nn.Sequential(*layers)


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """In here modules draw their first weights from PyTorch's global generator, which stays as it was."""
    with _GLOBAL, torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator, device=generator.device)))
        yield


@torch.no_grad()
def initialize(layer: nn.Linear, gain: float | None, generator: torch.Generator) -> None:
    """Draws orthogonal weights of that gain, with zero biases; without a gain, as PyTorch does by default."""
    if gain is None:  # PyTorch's default
        bound = 1 / math.sqrt(layer.in_features)
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    else:
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        layer.bias.zero_()
