"""Creating the distribution of continuous actions, and checking one that a user has registered."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.distributions.continuous import ContinuousDistribution
from lockstep.models.layers import seeded
from lockstep.models.registry import distribution_factory, is_registered
from lockstep.models.settings import PolicyConfig

__all__ = ["make_distribution"]

_UNBOUNDED = 1e30
"""Bounds of at least this size are treated as missing."""
_ROWS = 3


def make_distribution(low: NDArray[Any], high: NDArray[Any], config: PolicyConfig) -> ContinuousDistribution:
    """Create the distribution that the config names, for components between the bounds `low` and `high`, `[A]` each.

    Raises ValueError in one line if there is none of this name, if it can't be used with these bounds or with
    squashing, or if a registered one returns results of wrong shapes or not determined by its arguments.
    """
    distribution = distribution_factory(config.distribution)(low, high, config)
    field = f"policy.distribution is {config.distribution!r}"
    if not isinstance(distribution, ContinuousDistribution):
        raise ValueError(f"{field}: it must be a subclass of lockstep.ContinuousDistribution")
    if distribution.bounded:
        for component, bounds in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            if not bounds[0] < bounds[1]:
                raise ValueError(
                    f"{field}: component {component} of the actions is always {bounds[0]:g}; its bounds must differ"
                )
            if not max(map(abs, bounds)) < _UNBOUNDED:
                raise ValueError(
                    f"{field}: it needs finite bounds, but component {component} of the actions is between {bounds[0]:g} and {bounds[1]:g}"
                )
        if config.squash:
            raise ValueError(f"{field}: its actions lie within their bounds already, so policy.squash must be off")
    if is_registered("distribution", config.distribution):
        _check(distribution, len(low), field)
    return distribution


def _check(distribution: ContinuousDistribution, size: int, field: str) -> None:
    """Raise ValueError if the methods return wrong shapes, or draw random numbers."""
    for name in ("size", "initial_outputs"):
        if not hasattr(distribution, name):
            raise ValueError(f"{field}: it does not set {name}")
    if distribution.size != size:
        raise ValueError(f"{field}: its size is {distribution.size}, but actions have {size} continuous components")
    features = (1.0,) * distribution.features
    start = torch.tensor([*distribution.initial_outputs, *features, *distribution.initial_log_std], device="cpu")
    parameters, generator = start.expand(_ROWS, -1), np.random.default_rng(0)
    if list(distribution.named(parameters)) != list(distribution.meanings):
        raise ValueError(f"{field}: named and meanings must have the same names in the same order")
    steps = distribution.noise(generator, 2, _ROWS)
    noise = torch.from_numpy(distribution.noise(generator, _ROWS)).to(parameters)
    _check_shape(field, "noise of 2 steps", steps, (2, _ROWS, *noise.shape[1:]))

    def results() -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        actions = distribution.sample(parameters, noise)
        log_prob, entropy = distribution.log_prob_and_entropy(parameters, actions)
        return {
            "sample": (actions, (_ROWS, size)),
            "mode": (distribution.mode(parameters), (_ROWS, size)),
            "log_prob": (log_prob, (_ROWS,)),
            "entropy": (entropy, (_ROWS,)),
        }

    with seeded(torch.Generator().manual_seed(0)), torch.device("cpu"):
        first, again = results(), results()
    for name, (result, shape) in first.items():
        _check_shape(field, name, result, shape)
        if not torch.equal(result, again[name][0]):
            raise ValueError(
                f"{field}: two calls of {name} with the same arguments differ; draw random numbers in noise only"
            )


def _check_shape(field: str, name: str, result: Tensor | NDArray[Any], shape: tuple[int, ...]) -> None:
    if tuple(result.shape) != shape:
        raise ValueError(f"{field}: {name} has shape {list(result.shape)}, but must have {list(shape)}")
