"""Interface of the distributions of continuous actions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["ContinuousDistribution", "NumpySampler"]

NumpySampler = Callable[[int, NDArray[Any], NDArray[Any]], NDArray[Any]]
"""Function of a step t, outputs of the policy's output layer `[N, H]` and an array that it fills with actions and returns."""


class ContinuousDistribution(ABC):
    """Distribution of the A continuous components of actions.

    Its parameters `[N, D]` are the outputs of the policy's last layer, then its inputs if the distribution sets
    `features`, then learned numbers that do not depend on the observation. Actions are `[N, A]`. The methods work on
    every row separately, and draw no random numbers except in `noise`: actions depend on weights, observation and noise
    only.
    """

    bounded = False
    """True if samples lie within the bounds of the actions, which must be finite. The others are clipped or squashed afterwards."""
    size: int
    """Number of components, A."""
    initial_outputs: tuple[float, ...]
    """Outputs of the policy's last layer at the start of training."""
    features: int = 0
    """Number of inputs of that layer, `PolicyConfig.head_inputs`, if they are parameters of the distribution, which get no gradient; else 0."""
    initial_log_std: tuple[float, ...] = ()
    """Initial values of the parameters that do not depend on the observation."""
    meanings: ClassVar[Mapping[str, str]] = {"parameters": "of the distribution of continuous components"}
    """Description of each entry of `named`."""

    @property
    def parameter_count(self) -> int:
        """Number of parameters, D."""
        return len(self.initial_outputs) + self.features + len(self.initial_log_std)

    def __repr__(self) -> str:
        """Return a text that identifies everything the distribution depends on besides its class's code."""
        return f"{type(self).__name__} {self.size}"

    @abstractmethod
    def noise(self, generator: np.random.Generator, *shape: int) -> NDArray[Any]:
        """Draw the noise `[*shape, K]` of samples. If `shape` is `T, B`, it is for T steps of B environments."""

    @abstractmethod
    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Return actions `[N, A]`, a function of parameters `[N, D]` and noise `[N, K]`."""

    @abstractmethod
    def mode(self, parameters: Tensor) -> Tensor:
        """Return the most probable actions `[N, A]`."""

    @abstractmethod
    def log_prob_and_entropy(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-densities `[N]` of actions and the entropies `[N]` in nats, both summed over components."""

    def log_prob(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Return the log-densities `[N]` of actions."""
        return self.log_prob_and_entropy(parameters, actions)[0]

    def named(self, parameters: Tensor) -> dict[str, Tensor]:
        """Return the parameters by name, `[N, …]` each, for exported policies."""
        return {"parameters": parameters}

    def sampler(self, noise: NDArray[Any], log_std: NDArray[Any] | None) -> NumpySampler:
        """Return a function that computes `sample` on NumPy arrays, for noise `[T, N, K]` in the precision of the weights.

        `log_std` are the parameters that do not depend on the observation. The function may overwrite the noise. By
        default it calls `sample`.
        """
        drawn = torch.from_numpy(noise)
        rest = None if log_std is None else torch.from_numpy(log_std).expand(noise.shape[1], -1)

        @torch.inference_mode()
        def sample(t: int, head: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
            outputs = torch.from_numpy(head)
            parameters = outputs if rest is None else torch.cat([outputs, rest], -1)
            out[:] = self.sample(parameters, drawn[t]).numpy()
            return out

        return sample
