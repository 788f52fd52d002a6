"""Spaces, rollouts and methods for tests, in float64 by default."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.curiosity.curiosity import Curiosity, Images, Transitions
from lockstep.curiosity.methods import make_curiosity
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces
from lockstep.group.group import ordered_sum
from lockstep.randomness import stream
from lockstep.rollout import Rollout, Sizes

Shape = tuple[int, int, int]


def spaces_of(
    features: int,
    choices: Sequence[int] = (),
    low: Sequence[float] = (),
    high: Sequence[float] = (),
    images: Sequence[Shape] = (),
    masked: bool = False,
) -> Spaces:
    mask = sum(choices) if masked else 0
    bounds = (np.array(bound, dtype=np.float32) for bound in (low, high))
    return Spaces(features + mask, tuple(choices), *bounds, tuple(images), mask)


VECTOR = spaces_of(3, choices=(4,))
IMAGES = spaces_of(2, choices=(4,), images=[(2, 5, 5), (1, 4, 6)])
ONLY_IMAGES = spaces_of(0, low=[-1], high=[1], images=[(2, 5, 5)])


def method_of(
    kind: Any,
    spaces: Spaces,
    squash: bool = False,
    seed: int = 1,
    dtype: torch.dtype = torch.float64,
    **settings: Any,
) -> Any:
    settings = {"hidden": (16,), "feature_size": 6} | settings
    return make_curiosity(spaces, CuriosityConfig(kind=kind, **settings), squash, seed, dtype)


def normal(name: str, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(stream(1, name).normal(0, scale, shape))


def random_resets(name: str, steps: int, count: int, share: float = 0.2) -> Tensor:
    return torch.from_numpy(stream(1, f"resets {name}").random((steps, count)) < share)


def rollout_of(
    spaces: Spaces,
    steps: int,
    count: int,
    name: str = "rollout",
    scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Rollout:
    """Return a rollout with random observations, images, actions and reset rows."""
    size = None if spaces.discrete_actions is not None else spaces.action_size
    rollout = Rollout.empty(Sizes(steps, count, spaces.observation_size, size, (), dtype, spaces.pixel_count))
    random = stream(1, name)
    rollout.observations.copy_(2 + normal(name, *rollout.observations.shape, scale=scale))
    rollout.pixels.copy_(torch.from_numpy(random.integers(0, 256, rollout.pixels.shape, dtype=np.uint8)))
    parts = [random.integers(0, options, (steps, count, 1)) for options in spaces.choices]
    parts.append(random.normal(0, 2, (steps, count, spaces.continuous_size)))
    rollout.actions.copy_(torch.from_numpy(np.concatenate(parts, 2)).view(rollout.actions.shape))
    rollout.valid.copy_(~random_resets(name, steps, count))
    return rollout


def observed_steps(
    method: Curiosity, spaces: Spaces, steps: int = 9, count: int = 4, name: str = "rollout", scale: float = 1.0
) -> Transitions:
    """Update the running statistics of a method with a random rollout, and return the transitions of the rollout."""
    rollout = rollout_of(spaces, steps, count, name, scale)
    method.observe([rollout], ordered_sum)
    return method.transitions(rollout)


def image_pairs(steps: Transitions) -> Images:
    """Return the images before and after each step, in the form of minibatches."""
    if not steps.pixels.shape[2]:
        return None
    return steps.pixels[:-1].flatten(0, 1), steps.pixels[1:].flatten(0, 1)


def rewards(method: Curiosity, *steps: Transitions) -> list[Tensor]:
    counts = [step.valid.shape[1] for step in steps]
    found_rewards = method.reward(steps, [method.initial_state(step) for step in counts], ordered_sum)
    assert [step.shape for step in found_rewards] == [step.valid.shape for step in steps]
    assert all(step.dtype == torch.float64 for step in found_rewards)
    return list(found_rewards)


def train(method: Curiosity, columns: Tensor, images: Images, steps: int, rate: float = 3e-3) -> Tensor:
    """Train on all rows in each step; return the final losses, as means over rows."""
    optimizer = torch.optim.Adam(method.trained_parameters().values(), lr=rate)
    weights = torch.tensor(method.weights, dtype=torch.float64)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / steps)
        optimizer.zero_grad()
        (method.loss(columns, images).mean(0) * weights).sum().backward()
        optimizer.step()
    with torch.no_grad():
        return method.loss(columns, images).mean(0)
