"""Categorical distribution of discrete actions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lockstep.distributions.continuous import NumpySampler

__all__ = ["Categorical"]


class Categorical:
    """Categorical distribution over n actions. Parameters are logits `[N, n]`, actions int64 `[N]`."""

    def __init__(self, count: int) -> None:
        self.parameter_count = count
        self.initial_outputs = (0.0,) * count
        self.features = 0
        self.initial_log_std: tuple[float, ...] = ()

    def __repr__(self) -> str:
        return f"Categorical {self.parameter_count}"

    def noise(self, generator: np.random.Generator, *shape: int) -> NDArray[Any]:
        """Draw standard Gumbel noise `[*shape, n]`: the largest logit + noise is a sample (Gumbel 1954)."""
        return generator.gumbel(size=(*shape, self.parameter_count))

    def sample(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions `[N]`."""
        return (logits + noise).argmax(-1)

    def sampler(self, noise: NDArray[Any], log_std: NDArray[Any] | None) -> NumpySampler:
        """Return a function that computes `sample` in NumPy, see `ContinuousDistribution.sampler`; it overwrites the noise."""

        def sample(t: int, logits: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
            np.add(logits, noise[t], noise[t])
            noise[t].argmax(-1, out)
            return out

        return sample

    def mode(self, logits: Tensor) -> Tensor:
        """Return the most probable actions `[N]`."""
        return logits.argmax(-1)

    def named(self, parameters: Tensor) -> dict[str, Tensor]:
        """Return the parameters by name, for exported policies."""
        return {"logits": parameters}

    def log_prob(self, logits: Tensor, actions: Tensor) -> Tensor:
        """Return the log-probabilities `[N]` of actions."""
        return self.log_prob_and_entropy(logits, actions)[0]

    def log_prob_and_entropy(self, logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities `[N]` of actions and the entropies `[N]` in nats."""
        log_probs = logits.log_softmax(-1)
        chosen = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return chosen, -(log_probs.exp() * log_probs).sum(-1)
