"""Action distributions as plain functions of tensors, and for acting of arrays: no object is made per step.

Noise is drawn outside, from a keyed stream, so that acting is a function of weights, observation and noise.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Categorical", "Distribution", "Gaussian", "Joint", "distribution_of"]


class Categorical:
    """One of n actions. Parameters are logits `[N, n]`, actions int64 `[N]`."""

    def __init__(self, count: int) -> None:
        self.parameter_count = count

    def noise(self, generator: np.random.Generator, *shape: int) -> np.ndarray:
        """Standard Gumbel noise `[*shape, n]`: the largest of logit + noise is a draw (Gumbel 1954)."""
        return generator.gumbel(size=(*shape, self.parameter_count))

    def sample(self, logits: Tensor, noise: Tensor) -> Tensor:
        """`[N]` actions."""
        return (logits + noise).argmax(-1)

    def spread(self, noise: NDArray[Any], log_std: NDArray[Any] | None) -> NDArray[Any]:
        """What `draw` adds, for any number of steps at once: the noise."""
        return noise

    def draw(self, logits: NDArray[Any], spread: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        """`sample` in NumPy, into `out`; overwrites `spread`."""
        np.add(logits, spread, spread)
        spread.argmax(-1, out)
        return out

    def mode(self, logits: Tensor) -> Tensor:
        """`[N]` most probable actions."""
        return logits.argmax(-1)

    def log_prob(self, logits: Tensor, actions: Tensor) -> Tensor:
        """`[N]` log-probabilities."""
        return self.log_prob_and_entropy(logits, actions)[0]

    def log_prob_and_entropy(self, logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """`[N]` log-probabilities and `[N]` entropies in nats."""
        log_probs = logits.log_softmax(-1)
        chosen = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return chosen, -(log_probs.exp() * log_probs).sum(-1)


class Gaussian:
    """Independent normal components. Parameters are means and logarithms of standard deviations `[N, 2 A]`, actions `[N, A]`.

    With tanh squashing these are the actions before it: its Jacobian is the same under old and new weights, so it cancels in
    the ratio and in the KL. The entropy is the one before squashing.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.parameter_count = 2 * size

    def noise(self, generator: np.random.Generator, *shape: int) -> np.ndarray:
        """Standard normal noise `[*shape, A]`."""
        return generator.standard_normal((*shape, self.size))

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """`[N, A]` actions."""
        mean, log_std = parameters.split(self.size, -1)
        drawn: Tensor = mean + log_std.exp() * noise
        return drawn

    def spread(self, noise: NDArray[Any], log_std: NDArray[Any] | None) -> NDArray[Any]:
        """What `draw` adds, for any number of steps at once: noise times standard deviations."""
        assert log_std is not None
        spread: NDArray[Any] = noise * np.exp(log_std)
        return spread

    def draw(self, mean: NDArray[Any], spread: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        """`sample` in NumPy, into `out`."""
        np.add(mean, spread, out)
        return out

    def mode(self, parameters: Tensor) -> Tensor:
        """`[N, A]` most probable actions."""
        return parameters.narrow(-1, 0, self.size)

    def log_prob(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """`[N]` log-densities."""
        return self.log_prob_and_entropy(parameters, actions)[0]

    def log_prob_and_entropy(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """`[N]` log-densities and `[N]` entropies in nats."""
        mean, log_std = parameters.split(self.size, -1)
        standardized = (actions - mean) * (-log_std).exp()
        spread = log_std.sum(-1)
        log_prob = -0.5 * standardized.square().sum(-1) - spread - 0.5 * self.size * math.log(2 * math.pi)
        return log_prob, spread + 0.5 * self.size * math.log(2 * math.pi * math.e)


class Joint:
    """Several choices and continuous components, independent of each other.

    Parameters are the logits of all choices, then means, then logarithms of standard deviations. Actions are rows `[N, A]` of
    real numbers: the choices, then the continuous components.
    """

    def __init__(self, choices: Sequence[int], size: int) -> None:
        """Numbers of options, and of continuous components."""
        self._choices = [(Categorical(count), slice(end - count, end)) for count, end in _ends(choices)]
        self._gaussian = Gaussian(size) if size else None
        self._options = slice(0, sum(choices))
        self._rest = slice(sum(choices), None)
        self.parameter_count = sum(choices) + 2 * size

    def noise(self, generator: np.random.Generator, *shape: int) -> np.ndarray:
        """That of the options, then that of the continuous components `[*shape, …]`."""
        gumbel = generator.gumbel(size=(*shape, self._options.stop))
        return (
            gumbel if self._gaussian is None else np.concatenate([gumbel, self._gaussian.noise(generator, *shape)], -1)
        )

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """`[N, A]` actions."""
        drawn = [part.sample(parameters[..., at], noise[..., at]).unsqueeze(-1) for part, at in self._choices]
        if self._gaussian is not None:
            drawn.append(self._gaussian.sample(parameters[..., self._rest], noise[..., self._rest]))
        return torch.cat(drawn, -1).to(parameters.dtype)

    def spread(self, noise: NDArray[Any], log_std: NDArray[Any] | None) -> NDArray[Any]:
        """What `draw` adds, for any number of steps at once; overwrites `noise`."""
        if log_std is not None:
            noise[..., self._rest] *= np.exp(log_std)
        return noise

    def draw(self, head: NDArray[Any], spread: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        """`sample` in NumPy, into `out`; overwrites `spread`."""
        np.add(head, spread, spread)
        for column, (_, at) in enumerate(self._choices):
            out[:, column] = spread[:, at].argmax(-1)
        out[:, len(self._choices) :] = spread[:, self._rest]
        return out

    def mode(self, parameters: Tensor) -> Tensor:
        """`[N, A]` most probable actions."""
        found = [part.mode(parameters[..., at]).unsqueeze(-1) for part, at in self._choices]
        if self._gaussian is not None:
            found.append(self._gaussian.mode(parameters[..., self._rest]))
        return torch.cat(found, -1).to(parameters.dtype)

    def log_prob(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """`[N]` log-probabilities."""
        return self.log_prob_and_entropy(parameters, actions)[0]

    def log_prob_and_entropy(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """`[N]` log-probabilities and `[N]` entropies in nats: sums over the components."""
        found = [
            part.log_prob_and_entropy(parameters[:, at], actions[:, column].to(torch.int64))
            for column, (part, at) in enumerate(self._choices)
        ]
        if self._gaussian is not None:
            continuous = actions[:, len(self._choices) :]
            found.append(self._gaussian.log_prob_and_entropy(parameters[:, self._rest], continuous))
        log_prob, entropy = found[0]
        for own, its in found[1:]:
            log_prob, entropy = log_prob + own, entropy + its
        return log_prob, entropy


def _ends(choices: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(choices, accumulate(choices), strict=True))


Distribution = Categorical | Gaussian | Joint


def distribution_of(choices: Sequence[int], size: int) -> Distribution:
    """The distribution of an action of these choices and `size` continuous components."""
    if not choices:
        return Gaussian(size)
    return Categorical(choices[0]) if len(choices) == 1 and not size else Joint(choices, size)
