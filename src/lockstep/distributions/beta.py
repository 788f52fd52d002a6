"""Beta distribution of bounded continuous actions (Chou, Maturana & Scherer 2017, proceedings of ICML)."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from lockstep.distributions.continuous import ContinuousDistribution, NumpySampler
from lockstep.distributions.log_beta import log_beta

__all__ = ["Beta"]

_PROPOSALS = 6
"""Proposals per gamma variate. Each is rejected with probability below 0.05 (Marsaglia & Tsang 2000, table 1), so all of them in fewer than one
of 60 million cases; the variate is then the median of the proposals, α - 1/3."""
_SMALLEST = 1e-6
"""Smallest α - 1 and β - 1, for a mode that is defined, and smallest distance from a bound, relative to the range, for a finite density."""
_LINEAR = 40.0
"""Output from which softplus is the identity in float64, too. PyTorch's default, 20, differs from the function by 2e-9."""
_INITIAL_RANGE = (1.1, 1e4)
"""Range of the initial α and β: 1 is the uniform distribution, the widest one with a single mode."""


class Beta(ContinuousDistribution):
    """Beta distribution between the bounds of each component, with α > 1 and β > 1: it has one mode.

    The parameters `[N, 2 A]` are outputs of the policy, x and y, with α = 1 + softplus(x) and β = 1 + softplus(y).
    Actions are in the units of the environment, and so are densities and entropies.
    """

    bounded = True
    meanings: ClassVar[Mapping[str, str]] = {
        "alpha": "α of the beta distributions of continuous components side by side, between their bounds",
        "beta": "their β",
    }

    def __init__(self, low: NDArray[Any], high: NDArray[Any], log_std: float) -> None:
        """Create the distribution between finite bounds `[A]`.

        `log_std` is the natural logarithm of the initial standard deviation in units of half the range.
        """
        low, high = low.astype(np.float64), high.astype(np.float64)
        self.size = len(low)
        self._low, self._range = map(torch.from_numpy, (low, high - low))
        self._on_gpu: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor, Tensor]] = {}
        # on [-1, 1], the variance for α = β is 1 / (2 α + 1)
        smallest, largest = _INITIAL_RANGE
        excess = min(max((math.exp(-2 * log_std) - 1) / 2, smallest), largest) - 1
        self.initial_outputs = (excess + math.log(-math.expm1(-excess)),) * (2 * self.size)  # the inverse of softplus

    def __repr__(self) -> str:
        return f"Beta {self._low.tolist()} {self._range.tolist()}"

    def noise(self, generator: np.random.Generator, *shape: int) -> NDArray[Any]:
        """Draw the noise `[*shape, 24 A]`: standard normal and exponential numbers for 6 proposals of 2 gamma variates per component."""
        proposals = (*shape, _PROPOSALS, 2 * self.size)
        drawn = [generator.standard_normal(proposals), generator.standard_exponential(proposals)]
        return np.stack(drawn, -2).reshape(*shape, 4 * _PROPOSALS * self.size)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions `[N, A]`: X / (X + Y) for gamma variates X and Y, by the method of Marsaglia & Tsang (2000)."""
        normal, exponential = noise.unflatten(-1, (_PROPOSALS, 2, 2 * self.size)).unbind(-2)
        shape = self._excess(parameters).unsqueeze(-2) + 2 / 3
        root = 1 + normal / (9 * shape).sqrt()
        log_root = root.clamp_min(_SMALLEST).log()
        accepted = (root > 0) & (exponential + 0.5 * normal.square() + shape * (1 - root**3 + 3 * log_root) > 0)
        chosen = torch.ones_like(root[..., 0, :])
        for proposal in reversed(range(_PROPOSALS)):
            chosen = torch.where(accepted[..., proposal, :], root[..., proposal, :], chosen)
        x, y = (shape.squeeze(-2) * chosen**3).split(self.size, -1)
        return self._to_bounds(x / (x + y))

    def sampler(self, noise: NDArray[Any], log_std: NDArray[Any] | None) -> NumpySampler:
        """See `ContinuousDistribution.sampler`."""
        size, smallest = self.size, noise.dtype.type(_SMALLEST)
        normals, exponentials = np.moveaxis(noise.reshape(*noise.shape[:-1], _PROPOSALS, 2, 2 * size), -2, 0)
        slacks = exponentials + 0.5 * normals * normals
        low, width = (tensor.numpy().astype(noise.dtype) for tensor in (self._low, self._range))
        high = (self._low + self._range).numpy().astype(noise.dtype)
        rows, columns = np.ogrid[: noise.shape[1], : 2 * size]

        def sample(t: int, head: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
            shape = np.logaddexp(0, head)[:, np.newaxis]
            shape += smallest + noise.dtype.type(2 / 3)
            root = normals[t] / np.sqrt(9 * shape)
            root += 1
            margin = 1 - root**3
            margin += 3 * np.log(np.maximum(root, smallest))
            margin *= shape
            margin += slacks[t]
            accepted = (root > 0) & (margin > 0)
            first = accepted.argmax(1)
            chosen = np.where(accepted[rows, first, columns], root[rows, first, columns], 1)
            gammas = shape[:, 0] * chosen**3
            x, y = gammas[:, :size], gammas[:, size:]
            np.multiply(x / (x + y), width, out)
            out += low
            return np.clip(out, low, high, out)

        return sample

    def mode(self, parameters: Tensor) -> Tensor:
        """See `ContinuousDistribution.mode`."""
        alpha_excess, beta_excess = self._excess(parameters).split(self.size, -1)
        return self._to_bounds(alpha_excess / (alpha_excess + beta_excess))

    def log_prob_and_entropy(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """See `ContinuousDistribution.log_prob_and_entropy`."""
        low, width, _ = self._bounds(actions)
        fraction = ((actions - low) / width).clamp(_SMALLEST, 1 - _SMALLEST)
        alpha_excess, beta_excess = self._excess(parameters).split(self.size, -1)
        alpha, beta = alpha_excess + 1, beta_excess + 1
        log_norm = log_beta(alpha, beta) + width.log()
        log_prob = alpha_excess * fraction.log() + beta_excess * (-fraction).log1p() - log_norm
        entropy = log_norm - alpha_excess * alpha.digamma() - beta_excess * beta.digamma()
        entropy = entropy + (alpha_excess + beta_excess) * (alpha + beta).digamma()
        return log_prob.sum(-1), entropy.sum(-1)

    def named(self, parameters: Tensor) -> dict[str, Tensor]:
        """See `ContinuousDistribution.named`."""
        return dict(zip(self.meanings, (self._excess(parameters) + 1).split(self.size, -1), strict=True))

    def _bounds(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return lowest values, ranges and highest values `[A]`, with the device and dtype of `like`."""
        key = like.device, like.dtype
        if key in self._on_gpu:
            return self._on_gpu[key]
        low, width, high = (tensor.to(like) for tensor in (self._low, self._range, self._low + self._range))
        if like.is_cuda:  # nothing may be copied from the CPU while a CUDA graph is recorded
            self._on_gpu[key] = low, width, high
        return low, width, high

    def _excess(self, parameters: Tensor) -> Tensor:
        """Return α - 1 and β - 1, `[N, 2 A]`."""
        return softplus(parameters, threshold=_LINEAR) + _SMALLEST

    def _to_bounds(self, fractions: Tensor) -> Tensor:
        low, width, high = self._bounds(fractions)
        return torch.minimum(torch.maximum(low + fractions * width, low), high)
