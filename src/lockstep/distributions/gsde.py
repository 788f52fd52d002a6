"""Generalized state-dependent exploration, gSDE (Raffin, Kober & Stulp 2022, arXiv:2005.05719)."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.distributions.gaussian import Gaussian

__all__ = ["StateDependentExploration"]

_SMALLEST_VARIANCE = 1e-6
"""Added to the variances, for densities that are finite if all features are zero."""


class StateDependentExploration(Gaussian):
    """Normal distribution whose noise is a linear function of the L features of the policy's last hidden layer.

    The noise of component a is the sum over features i of h_i σ_ai ε_ai, where h are the features, σ the learned
    standard deviations, and ε a standard normal matrix that an environment keeps for `interval` steps. So within an
    interval the noise is a deterministic function of the observation. Its standard deviation in a step is
    sqrt(Σ_i h_i² σ_ai² + 1e-6), which is that of densities and entropies.

    Parameters `[N, A + L + A L]` are the means, the features, and the matrix of log σ, row by row. Gradients do not
    pass into the features.
    """

    def __init__(self, size: int, features: int, log_std: float = 0.0, interval: int = 1) -> None:
        """Create the distribution of `size` components.

        `log_std` is the initial log σ. `interval` is the number of steps for which environments keep a matrix.
        """
        super().__init__(size, log_std)
        self.features = features
        self.initial_log_std = (log_std,) * (size * features)
        self._interval = interval

    def __repr__(self) -> str:
        return f"{super().__repr__()} {self.features} {self._interval}"

    def noise(self, generator: np.random.Generator, *shape: int) -> NDArray[Any]:
        """Draw matrices `[*shape, A L]`. If `shape` is `T, B`, those of the T steps of an interval are equal."""
        width = self.size * self.features
        if len(shape) == 1:
            return generator.standard_normal((*shape, width))
        steps, *rest = shape
        drawn = generator.standard_normal((math.ceil(steps / self._interval), *rest, width))
        return drawn.repeat(min(self._interval, steps), axis=0)[:steps]

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """See `ContinuousDistribution.sample`."""
        mean, features, log_std = self._parts(parameters)
        matrix = noise.unflatten(-1, (self.size, self.features))
        drawn: Tensor = mean + (log_std.exp() * matrix * features).sum(-1)
        return drawn

    def _parts(self, parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return means `[N, A]`, features `[N, 1, L]` and logarithms of standard deviations `[N, A, L]`."""
        mean, features, log_std = parameters.split([self.size, self.features, self.size * self.features], -1)
        return mean, features.unsqueeze(-2), log_std.unflatten(-1, (self.size, self.features))

    def _split(self, parameters: Tensor) -> tuple[Tensor, ...]:
        mean, features, log_std = self._parts(parameters)
        variance = ((2 * log_std).exp() * features.square()).sum(-1) + _SMALLEST_VARIANCE
        return mean, 0.5 * torch.log(variance)
