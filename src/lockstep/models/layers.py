"""Layers whose initial weights are drawn from a given generator."""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["ACTIVATIONS", "TRUNK_GAIN", "Linear", "initialize", "mlp", "orthogonal", "seeded"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": partial(nn.GELU, approximate="tanh"),
}
TRUNK_GAIN = math.sqrt(2)
"""Gain of orthogonal weights before a nonlinearity."""

_CACHED = 2**16
"""Number of float64 values that stay in the cache, with the results of operations on them."""

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
        orthogonal(layer.weight, gain, generator)
        layer.bias.zero_()


@torch.no_grad()
def orthogonal(weights: Tensor, gain: float = 1.0, generator: torch.Generator | None = None) -> None:
    """Fill `weights` `[M, …]` with a random (semi-)orthogonal matrix `[M, N]` times `gain` (Saxe et al. 2014, arXiv:1312.6120).

    Equal to `nn.init.orthogonal_` up to rounding, but with the same bits on every processor: the code of LAPACK's QR decomposition depends on
    the processor. Does nothing on the device meta.
    """
    if weights.is_meta:
        return
    drawn = weights.new_empty(weights.flatten(1).shape).normal_(generator=generator)
    vectors = drawn.double().numpy()
    if is_tall := len(vectors) >= vectors.shape[1]:
        vectors = np.ascontiguousarray(vectors.T)
    _orthonormalize(vectors)
    weights.copy_(torch.from_numpy(vectors.T if is_tall else vectors).mul(gain).view_as(weights))


def _orthonormalize(vectors: NDArray[np.float64]) -> None:
    """Orthonormalize the rows by the modified Gram-Schmidt process, in place, with sums whose order does not depend on the processor."""
    rows = max(1, _CACHED // vectors.shape[1])
    for start in range(0, len(vectors), rows):
        block = vectors[start : start + rows]
        for number, vector in enumerate(block):
            vector /= np.sqrt(np.square(vector).sum())
            _project_out(block[number + 1 :], vector)
        for first in range(start + rows, len(vectors), rows):
            for vector in block:
                _project_out(vectors[first : first + rows], vector)


def _project_out(vectors: NDArray[np.float64], unit: NDArray[np.float64]) -> None:
    """Subtract the components along a unit vector."""
    vectors -= (vectors * unit).sum(1, keepdims=True) * unit
