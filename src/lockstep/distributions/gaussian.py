"""Normal distributions of continuous actions, with standard deviations that depend on the observation or do not."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lockstep.distributions.continuous import ContinuousDistribution, NumpySampler
from lockstep.distributions.noise import colored

__all__ = ["LOG_STD_RANGE", "Gaussian", "StateGaussian"]

LOG_STD_RANGE = (-10.0, 5.0)
"""Range of `policy.log_std`, to which log standard deviations that depend on the observation are clamped, as in implementations of soft
actor-critic (Haarnoja et al. 2018, arXiv:1812.05905)."""


class Gaussian(ContinuousDistribution):
    """Normal distribution with independent components, whose standard deviations do not depend on the observation.

    Parameters are the means, then the logarithms of the standard deviations, `[N, 2 A]`; actions are `[N, A]`. With
    tanh squashing, the actions are those before tanh: its Jacobian is the same under old and new weights, so it cancels
    in the ratio and in the KL. The entropy is that before squashing.
    """

    meanings: ClassVar[Mapping[str, str]] = {
        "mean": "of continuous components side by side",
        "log_std": "natural logarithm of their standard deviations",
    }

    def __init__(self, size: int, log_std: float = 0.0, noise_exponent: float = 0.0) -> None:
        """Create the distribution of `size` components. `noise_exponent` is β of `colored`, for noise of several steps."""
        self.size = size
        self.initial_outputs, self.initial_log_std = (0.0,) * size, (log_std,) * size
        self._noise_exponent = noise_exponent

    def noise(self, generator: np.random.Generator, *shape: int) -> NDArray[Any]:
        """Draw standard normal noise `[*shape, A]`. If `shape` is `T, B`, the noise of T steps is colored."""
        white = generator.standard_normal((*shape, self.size))
        return colored(white, self._noise_exponent) if len(shape) > 1 else white

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """See `ContinuousDistribution.sample`."""
        mean, log_std = self._split(parameters)
        drawn: Tensor = mean + log_std.exp() * noise
        return drawn

    def sampler(self, noise: NDArray[Any], log_std: NDArray[Any] | None) -> NumpySampler:
        """See `ContinuousDistribution.sampler`."""
        assert log_std is not None
        scaled = noise * np.exp(log_std)
        return lambda t, head, out: np.add(head, scaled[t], out)

    def mode(self, parameters: Tensor) -> Tensor:
        """See `ContinuousDistribution.mode`."""
        return parameters.narrow(-1, 0, self.size)

    def log_prob_and_entropy(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """See `ContinuousDistribution.log_prob_and_entropy`."""
        mean, log_std = self._split(parameters)
        standardized = (actions - mean) * (-log_std).exp()
        log_scale = log_std.sum(-1)
        log_prob = -0.5 * standardized.square().sum(-1) - log_scale - 0.5 * self.size * math.log(2 * math.pi)
        return log_prob, log_scale + 0.5 * self.size * math.log(2 * math.pi * math.e)

    def named(self, parameters: Tensor) -> dict[str, Tensor]:
        """See `ContinuousDistribution.named`."""
        return dict(zip(self.meanings, self._split(parameters), strict=True))

    def _split(self, parameters: Tensor) -> tuple[Tensor, ...]:
        """Return the means and the logarithms of the standard deviations, `[N, A]` each."""
        mean, log_std = parameters.split(self.size, -1)
        return mean, log_std


class StateGaussian(Gaussian):
    """Normal distribution with independent components, whose means and log standard deviations are outputs of the policy."""

    def __init__(self, size: int, log_std: float = 0.0, noise_exponent: float = 0.0) -> None:
        """Create the distribution as `Gaussian` does."""
        super().__init__(size, log_std, noise_exponent)
        self.initial_outputs, self.initial_log_std = (0.0,) * size + (log_std,) * size, ()

    def sampler(self, noise: NDArray[Any], log_std: NDArray[Any] | None) -> NumpySampler:
        """See `ContinuousDistribution.sampler`."""
        size, (low, high) = self.size, LOG_STD_RANGE

        def sample(t: int, head: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
            deviation = np.exp(head[:, size:].clip(low, high))
            deviation *= noise[t]
            np.add(head[:, :size], deviation, out)
            return out

        return sample

    def _split(self, parameters: Tensor) -> tuple[Tensor, ...]:
        mean, log_std = parameters.split(self.size, -1)
        return mean, log_std.clamp(*LOG_STD_RANGE)
