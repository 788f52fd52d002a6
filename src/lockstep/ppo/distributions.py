"""Action distributions as functions of tensors, and of NumPy arrays for acting. No object is created per step.

The caller draws the noise beforehand from a keyed stream, so that actions depend on weights, observation and noise
only.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.ppo.noise import colored

__all__ = ["Categorical", "Distribution", "Gaussian", "Joint", "distribution_of"]


class Categorical:
    """Categorical distribution over n actions. Parameters are logits `[N, n]`, actions int64 `[N]`."""

    def __init__(self, count: int) -> None:
        self.parameter_count = count

    def noise(self, generator: np.random.Generator, *shape: int) -> np.ndarray:
        """Draw standard Gumbel noise `[*shape, n]`: the largest logit + noise is a sample (Gumbel 1954)."""
        return generator.gumbel(size=(*shape, self.parameter_count))

    def sample(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions `[N]`."""
        return (logits + noise).argmax(-1)

    def scale_noise(self, noise: NDArray[Any], log_std: NDArray[Any] | None) -> NDArray[Any]:
        """Return what `sample_numpy` adds to the logits, for any number of steps at once: the noise itself."""
        return noise

    def sample_numpy(self, logits: NDArray[Any], scaled_noise: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        """Compute `sample` in NumPy, write the actions into `out` and return it; overwrites `scaled_noise`."""
        np.add(logits, scaled_noise, scaled_noise)
        scaled_noise.argmax(-1, out)
        return out

    def mode(self, logits: Tensor) -> Tensor:
        """Return the most probable actions `[N]`."""
        return logits.argmax(-1)

    def log_prob(self, logits: Tensor, actions: Tensor) -> Tensor:
        """Return the log-probabilities `[N]` of actions."""
        return self.log_prob_and_entropy(logits, actions)[0]

    def log_prob_and_entropy(self, logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities `[N]` of actions and the entropies `[N]` in nats."""
        log_probs = logits.log_softmax(-1)
        chosen = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return chosen, -(log_probs.exp() * log_probs).sum(-1)


class Gaussian:
    """Normal distribution with independent components.

    Parameters are the means, then the logarithms of the standard deviations, `[N, 2 A]`; actions are `[N, A]`. With
    tanh squashing, the actions are those before tanh: its Jacobian is the same under old and new weights, so it cancels
    in the ratio and in the KL. The entropy is that before squashing.
    """

    def __init__(self, size: int, noise_exponent: float = 0.0) -> None:
        """Create the distribution of `size` components. `noise_exponent` is β of `colored`, for noise of several steps."""
        self.size = size
        self.parameter_count = 2 * size
        self._noise_exponent = noise_exponent

    def noise(self, generator: np.random.Generator, *shape: int) -> np.ndarray:
        """Draw standard normal noise `[*shape, A]`. If `shape` is `T, B`, the noise of T steps is colored."""
        white = generator.standard_normal((*shape, self.size))
        return colored(white, self._noise_exponent) if len(shape) > 1 else white

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions `[N, A]`."""
        mean, log_std = parameters.split(self.size, -1)
        drawn: Tensor = mean + log_std.exp() * noise
        return drawn

    def scale_noise(self, noise: NDArray[Any], log_std: NDArray[Any] | None) -> NDArray[Any]:
        """Return what `sample_numpy` adds to the means, for any number of steps at once: noise times standard deviations."""
        assert log_std is not None
        scaled: NDArray[Any] = noise * np.exp(log_std)
        return scaled

    def sample_numpy(self, mean: NDArray[Any], scaled_noise: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        """Compute `sample` in NumPy, write the actions into `out` and return it."""
        np.add(mean, scaled_noise, out)
        return out

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the most probable actions `[N, A]`."""
        return parameters.narrow(-1, 0, self.size)

    def log_prob(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Return the log-densities `[N]` of actions."""
        return self.log_prob_and_entropy(parameters, actions)[0]

    def log_prob_and_entropy(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-densities `[N]` of actions and the entropies `[N]` in nats."""
        mean, log_std = parameters.split(self.size, -1)
        standardized = (actions - mean) * (-log_std).exp()
        log_scale = log_std.sum(-1)
        log_prob = -0.5 * standardized.square().sum(-1) - log_scale - 0.5 * self.size * math.log(2 * math.pi)
        return log_prob, log_scale + 0.5 * self.size * math.log(2 * math.pi * math.e)


class Joint:
    """Joint distribution of several discrete choices and continuous components, all independent of each other.

    Parameters are the logits of all choices, then the means, then the logarithms of the standard deviations. Actions
    are rows `[N, A]` of real numbers: the choices, then the continuous components.
    """

    def __init__(self, choices: Sequence[int], size: int, noise_exponent: float = 0.0) -> None:
        """Create the distribution for the number of options of each choice and `size` continuous components, whose noise may be colored."""
        ends = zip(choices, accumulate(choices), strict=True)
        self._choices = [(Categorical(count), slice(end - count, end)) for count, end in ends]
        self._gaussian = Gaussian(size, noise_exponent) if size else None
        self._options = slice(0, sum(choices))
        self._continuous = slice(sum(choices), None)
        self.parameter_count = sum(choices) + 2 * size

    def noise(self, generator: np.random.Generator, *shape: int) -> np.ndarray:
        """Draw noise `[*shape, …]`: Gumbel noise for all options, then normal noise for the continuous components."""
        gumbel = generator.gumbel(size=(*shape, self._options.stop))
        return (
            gumbel if self._gaussian is None else np.concatenate([gumbel, self._gaussian.noise(generator, *shape)], -1)
        )

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions `[N, A]`."""
        drawn = [
            part.sample(parameters[..., columns], noise[..., columns]).unsqueeze(-1) for part, columns in self._choices
        ]
        if self._gaussian is not None:
            drawn.append(self._gaussian.sample(parameters[..., self._continuous], noise[..., self._continuous]))
        return torch.cat(drawn, -1).to(parameters.dtype)

    def scale_noise(self, noise: NDArray[Any], log_std: NDArray[Any] | None) -> NDArray[Any]:
        """Return what `sample_numpy` adds to logits and means, for any number of steps at once; overwrites `noise`."""
        if log_std is not None:
            noise[..., self._continuous] *= np.exp(log_std)
        return noise

    def sample_numpy(self, head: NDArray[Any], scaled_noise: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        """Compute `sample` in NumPy, write the actions into `out` and return it; overwrites `scaled_noise`."""
        np.add(head, scaled_noise, scaled_noise)
        for column, (_, columns) in enumerate(self._choices):
            out[:, column] = scaled_noise[:, columns].argmax(-1)
        out[:, len(self._choices) :] = scaled_noise[:, self._continuous]
        return out

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the most probable actions `[N, A]`."""
        modes = [part.mode(parameters[..., columns]).unsqueeze(-1) for part, columns in self._choices]
        if self._gaussian is not None:
            modes.append(self._gaussian.mode(parameters[..., self._continuous]))
        return torch.cat(modes, -1).to(parameters.dtype)

    def log_prob(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Return the log-probabilities `[N]` of actions."""
        return self.log_prob_and_entropy(parameters, actions)[0]

    def log_prob_and_entropy(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities `[N]` and entropies `[N]` in nats, both summed over choices and components."""
        terms = [
            part.log_prob_and_entropy(parameters[:, columns], actions[:, column].to(torch.int64))
            for column, (part, columns) in enumerate(self._choices)
        ]
        if self._gaussian is not None:
            continuous = actions[:, len(self._choices) :]
            terms.append(self._gaussian.log_prob_and_entropy(parameters[:, self._continuous], continuous))
        log_prob, entropy = terms[0]
        for part_log_prob, part_entropy in terms[1:]:
            log_prob, entropy = log_prob + part_log_prob, entropy + part_entropy
        return log_prob, entropy


Distribution = Categorical | Gaussian | Joint


def distribution_of(choices: Sequence[int], size: int, noise_exponent: float = 0.0) -> Distribution:
    """Create the distribution of actions with these choices (numbers of options) and `size` continuous components, for whose noise see
    `Gaussian`.
    """
    if not choices:
        return Gaussian(size, noise_exponent)
    return Categorical(choices[0]) if len(choices) == 1 and not size else Joint(choices, size, noise_exponent)
