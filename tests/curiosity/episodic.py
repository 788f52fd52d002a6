"""Consecutive rollouts for methods with per-episode state, and checks that several such methods have in common."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from tests.curiosity.rollouts import IMAGES, ONLY_IMAGES, VECTOR, image_pairs, rollout_of, spaces_of
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
    """Yield consecutive rollouts with reset rows, among them the first and the last row of a rollout."""
    rollout = rollout_of(spaces, sum(lengths), count, f"shard {shard}", dtype=method.dtype)
    random = stream(1, "ends", shard)
    rollout.valid.copy_(torch.from_numpy(random.random(rollout.valid.shape) < 0.85))
    rollout.valid[:5, 0] = True  # something long at the beginning
    start = 0
    for number, length in enumerate(lengths):
        if number:
            rollout.valid[start, 0] = rollout.valid[start - 1, -1] = False
        start += length
    method.observe([rollout], ordered_sum)
    yield from split_steps(method.transitions(rollout), lengths)


def split_steps(steps: Transitions, lengths: list[int]) -> Iterator[Transitions]:
    """Split transitions into rollouts of the given lengths."""
    start = 0
    for length in lengths:
        rows, ahead = slice(start, start + length), slice(start, start + length + 1)
        yield Transitions(steps.features[ahead], steps.pixels[ahead], steps.actions[rows], steps.valid[rows])
        start += length


def network_outputs(method: Curiosity, network: torch.nn.Module, steps: Transitions) -> np.ndarray:
    """Return the output of a network for all observations, `[T + 1, B, size]`."""
    pixels = method.normalize_images(steps.pixels.flatten(0, 1)) if method.images else None
    with torch.no_grad():
        return network(steps.features.flatten(0, 1), pixels).view(*steps.features.shape[:2], -1).numpy()


def check_trained_parameters(method: Curiosity, steps: Transitions) -> None:
    """Check that the gradients of the losses reach all trained parameters, and no others."""
    columns = method.columns(steps)
    assert columns.shape == (steps.valid.numel(), method.width)
    losses = method.loss(columns, image_pairs(steps))
    assert losses.shape == (steps.valid.numel(), len(method.losses))
    losses.sum().backward()
    trained = method.trained_parameters()
    for name, parameter in method.named_parameters():
        assert parameter.requires_grad == (name in trained)
        if name in trained:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
        else:
            assert parameter.grad is None, name


def check_episodes_are_independent(
    method: Curiosity, reward: Callable[[Transitions, dict[str, Tensor]], Tensor]
) -> None:
    """Check that rewards do not depend on earlier episodes or on later observations."""
    (steps,) = steps_of(method, VECTOR, 2, [12])
    steps.valid[:] = True
    steps.valid[6, 0] = False  # row 7 begins an episode
    other = Transitions(steps.features.clone(), steps.pixels, steps.actions, steps.valid)
    other.features[:7, 0] += 1
    state, other_state = method.initial_state(2), method.initial_state(2)
    one, two = reward(steps, state), reward(other, other_state)
    np.testing.assert_allclose(one[7:, 0], two[7:, 0], rtol=1e-10)
    np.testing.assert_allclose(one[:, 1], two[:, 1], rtol=1e-10)
    assert (one[3:6, 0] != two[3:6, 0]).all()
    np.testing.assert_allclose(reward(steps, state)[:6, 0], reward(steps, other_state)[:6, 0], rtol=1e-10)
