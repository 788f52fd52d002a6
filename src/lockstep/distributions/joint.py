"""Action distributions as functions of tensors, and of NumPy arrays for acting. No object is created per step.

The caller draws the noise beforehand from a keyed stream, so that actions depend on weights, observation and noise
only.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.distributions.continuous import ContinuousDistribution, NumpySampler
from lockstep.distributions.discrete import Categorical

__all__ = ["Distribution", "Joint", "joint_of"]


class Joint:
    """Joint distribution of several discrete choices and continuous components, independent of each other.

    Parameters are the logits of all choices, then those of the continuous distribution. Actions are rows `[N, A]` of
    real numbers: the choices, then the continuous components.
    """

    def __init__(self, choices: Sequence[int], continuous: ContinuousDistribution | None) -> None:
        """Create the distribution for the number of options of each choice, and that of the continuous components if there are any."""
        ends = zip(choices, accumulate(choices), strict=True)
        self._choices = [(Categorical(count), slice(end - count, end)) for count, end in ends]
        self._distribution = continuous
        self._options = slice(0, sum(choices))
        self._continuous = slice(sum(choices), None)
        self.initial_outputs = (0.0,) * sum(choices) + (() if continuous is None else continuous.initial_outputs)
        self.features = 0 if continuous is None else continuous.features
        self.initial_log_std = () if continuous is None else continuous.initial_log_std
        self.parameter_count = len(self.initial_outputs) + self.features + len(self.initial_log_std)

    def __repr__(self) -> str:
        return f"{[part for part, _ in self._choices]} {self._distribution}"

    def noise(self, generator: np.random.Generator, *shape: int) -> NDArray[Any]:
        """Draw noise `[*shape, …]`: Gumbel noise for all options, then that of the continuous components."""
        gumbel = generator.gumbel(size=(*shape, self._options.stop))
        if self._distribution is None:
            return gumbel
        return np.concatenate([gumbel, self._distribution.noise(generator, *shape)], -1)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Return sampled actions `[N, A]`."""
        drawn = [
            part.sample(parameters[..., columns], noise[..., columns]).unsqueeze(-1) for part, columns in self._choices
        ]
        if self._distribution is not None:
            drawn.append(self._distribution.sample(parameters[..., self._continuous], noise[..., self._continuous]))
        return torch.cat(drawn, -1).to(parameters.dtype)

    def sampler(self, noise: NDArray[Any], log_std: NDArray[Any] | None) -> NumpySampler:
        """Return a function that computes `sample` in NumPy, see `ContinuousDistribution.sampler`; it overwrites the noise."""
        gumbel, options = noise[..., self._options], self._options
        draw = None
        if self._distribution is not None:
            draw = self._distribution.sampler(np.ascontiguousarray(noise[..., self._continuous]), log_std)

        def sample(t: int, head: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
            perturbed = gumbel[t]
            np.add(head[:, options], perturbed, perturbed)
            for column, (_, columns) in enumerate(self._choices):
                out[:, column] = perturbed[:, columns].argmax(-1)
            if draw is not None:
                draw(t, head[:, self._continuous], out[:, len(self._choices) :])
            return out

        return sample

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the most probable actions `[N, A]`."""
        modes = [part.mode(parameters[..., columns]).unsqueeze(-1) for part, columns in self._choices]
        if self._distribution is not None:
            modes.append(self._distribution.mode(parameters[..., self._continuous]))
        return torch.cat(modes, -1).to(parameters.dtype)

    def named(self, parameters: Tensor) -> dict[str, Tensor]:
        """Return the parameters by name, `[N, …]` each, for exported policies."""
        continuous = {} if self._distribution is None else self._distribution.named(parameters[:, self._continuous])
        return {"logits": parameters[:, self._options], **continuous}

    def log_prob(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Return the log-probabilities `[N]` of actions."""
        return self.log_prob_and_entropy(parameters, actions)[0]

    def log_prob_and_entropy(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities `[N]` and entropies `[N]` in nats, both summed over choices and components."""
        terms = [
            part.log_prob_and_entropy(parameters[:, columns], actions[:, column].to(torch.int64))
            for column, (part, columns) in enumerate(self._choices)
        ]
        if self._distribution is not None:
            continuous = actions[:, len(self._choices) :]
            terms.append(self._distribution.log_prob_and_entropy(parameters[:, self._continuous], continuous))
        log_prob, entropy = terms[0]
        for part_log_prob, part_entropy in terms[1:]:
            log_prob, entropy = log_prob + part_log_prob, entropy + part_entropy
        return log_prob, entropy


Distribution = Categorical | ContinuousDistribution | Joint


def joint_of(choices: Sequence[int], continuous: ContinuousDistribution | None) -> Distribution:
    """Return the distribution of actions with these choices (numbers of options) and these continuous components."""
    if not choices:
        assert continuous is not None
        return continuous
    return Categorical(choices[0]) if len(choices) == 1 and continuous is None else Joint(choices, continuous)
