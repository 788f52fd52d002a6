"""Rollouts that follow one another, for methods that remember episodes, and what such methods are asked in the same words."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from tests.curiosity.rollouts import IMAGES, ONLY_IMAGES, VECTOR, pairs, rollout_of, spaces_of
from torch import Tensor

from lockstep.curiosity.curiosity import Curiosity, Transitions
from lockstep.envs.spaces import Spaces
from lockstep.group.group import ordered_sum
from lockstep.randomness import stream

SPACES = {
    "discrete": VECTOR,
    "several": spaces_of(3, choices=(2, 3)),
    "continuous": spaces_of(3, low=(-1, -2), high=(1, np.inf)),
    "both": spaces_of(3, choices=(2,), low=(-1, -2), high=(1, np.inf)),
    "masked": spaces_of(3, choices=(4,), masked=True),
    "images": ONLY_IMAGES,
    "vectors and images": IMAGES,
}


def steps_of(
    method: Curiosity, spaces: Spaces, count: int, lengths: list[int], shard: int = 0
) -> Iterator[Transitions]:
    """Rollouts that follow one another, with reset rows here and there, the first and the last row of a rollout among them."""
    whole = rollout_of(spaces, sum(lengths), count, f"shard {shard}", dtype=method.dtype)
    random = stream(1, "ends", shard)
    whole.valid.copy_(torch.from_numpy(random.random(whole.valid.shape) < 0.85))
    whole.valid[:5, 0] = True  # something long at the beginning
    at = 0
    for number, length in enumerate(lengths):
        if number:
            whole.valid[at, 0] = whole.valid[at - 1, -1] = False
        at += length
    method.observe([whole], ordered_sum)
    yield from parted(method.transitions(whole), lengths)


def parted(steps: Transitions, lengths: list[int]) -> Iterator[Transitions]:
    """The same, in several rollouts."""
    at = 0
    for length in lengths:
        rows, ahead = slice(at, at + length), slice(at, at + length + 1)
        yield Transitions(steps.features[ahead], steps.pixels[ahead], steps.actions[rows], steps.valid[rows])
        at += length


def embedded(method: Curiosity, network: torch.nn.Module, steps: Transitions) -> np.ndarray:
    """What a network makes of all observations, `[T + 1, B, size]`."""
    pixels = method.normalize_images(steps.pixels.flatten(0, 1)) if method.images else None
    with torch.no_grad():
        return network(steps.features.flatten(0, 1), pixels).view(*steps.features.shape[:2], -1).numpy()


def is_trained_alone(method: Curiosity, steps: Transitions) -> None:
    """Both losses reach all parameters that are trained, and no others."""
    columns = method.columns(steps)
    assert columns.shape == (steps.valid.numel(), method.width)
    losses = method.loss(columns, pairs(steps))
    assert losses.shape == (steps.valid.numel(), len(method.losses))
    losses.sum().backward()
    trained = method.parts()
    for name, parameter in method.named_parameters():
        assert parameter.requires_grad == (name in trained)
        if name in trained:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
        else:
            assert parameter.grad is None, name


def forgets(method: Curiosity, reward: Callable[[Transitions, dict[str, Tensor]], Tensor]) -> None:
    """What is before an episode's first observation means nothing to it, and what comes after means nothing to what was before."""
    (steps,) = steps_of(method, VECTOR, 2, [12])
    steps.valid[:] = True
    steps.valid[6, 0] = False  # row 7 begins an episode
    other = Transitions(steps.features.clone(), steps.pixels, steps.actions, steps.valid)
    other.features[:7, 0] += 1
    kept, others = method.initial_state(2), method.initial_state(2)
    one, two = reward(steps, kept), reward(other, others)
    np.testing.assert_allclose(one[7:, 0], two[7:, 0], rtol=1e-10)
    np.testing.assert_allclose(one[:, 1], two[:, 1], rtol=1e-10)
    assert (one[3:6, 0] != two[3:6, 0]).all()
    np.testing.assert_allclose(reward(steps, kept)[:6, 0], reward(steps, others)[:6, 0], rtol=1e-10)
