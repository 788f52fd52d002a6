"""Layers whose initial weights are drawn from a given generator."""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock

import torch
from torch import nn

__all__ = ["ACTIVATIONS", "TRUNK_GAIN", "Linear", "initialize", "mlp", "seeded"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": partial(nn.GELU, approximate="tanh"),
}
TRUNK_GAIN = math.sqrt(2)
"""Gain of orthogonal weights before a nonlinearity."""

_GLOBAL_GENERATOR_LOCK = Lock()
"""Lock of PyTorch's global generator, which all threads share."""


class Linear(nn.Linear):
    """Linear layer with uninitialized weights: nn.Linear would draw them from the global generator."""

    def reset_parameters(self) -> None:
        """Do nothing: `initialize` sets the weights."""


def mlp(widths: tuple[int, ...], activation: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Sequential:
    """Create linear layers, each followed by the activation, from the numbers of inputs and of the outputs of each."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [Linear(inputs, outputs, dtype=dtype), activation()]
    return nn.Sequential(*layers)


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Seed PyTorch's global generator, from which modules draw their weights, in the context, and restore it at the end."""
    with _GLOBAL_GENERATOR_LOCK, torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator, device=generator.device)))
        yield


@torch.no_grad()
def initialize(layer: nn.Linear, gain: float | None, generator: torch.Generator) -> None:
    """Draw orthogonal weights with this gain and zero biases; without a gain, both as PyTorch does by default."""
    if gain is None:
        bound = 1 / math.sqrt(layer.in_features)
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    else:
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        layer.bias.zero_()
