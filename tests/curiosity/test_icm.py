"""ICM: losses and rewards compared with the paper, and training on environments with known dynamics."""

import pytest
import torch
from tests.curiosity.rollouts import (
    IMAGES,
    ONLY_IMAGES,
    VECTOR,
    image_pairs,
    method_of,
    normal,
    observed_steps,
    rewards,
    spaces_of,
    train,
)
from torch.nn import functional

from lockstep.curiosity.curiosity import Transitions
from lockstep.envs.spaces import Spaces

BOTH = spaces_of(3, choices=(4, 2), low=[-1], high=[1])


@pytest.mark.parametrize("spaces", [VECTOR, BOTH, IMAGES, ONLY_IMAGES])
def test_losses_and_rewards_equal_those_of_the_paper(spaces: Spaces) -> None:
    method = method_of("icm", spaces)
    steps = observed_steps(method, spaces)
    images, action = image_pairs(steps), steps.actions.flatten(0, 1)
    with torch.no_grad():
        before, after = (
            method.inverse.features(
                rows.flatten(0, 1), None if images is None else method.normalize_images(images[place])
            )
            for place, rows in enumerate((steps.features[:-1], steps.features[1:]))
        )
        prediction = method.inverse.guess(torch.cat([before, after], 1))
        forward_error = method.ahead(torch.cat([before, action], 1)) - after
    inverse, parts = torch.zeros(36, dtype=torch.float64), [*spaces.choices, spaces.continuous_size]
    for place, (logits, target) in enumerate(zip(prediction.split(parts, 1), action.split(parts, 1), strict=True)):
        if place < len(spaces.choices):
            inverse += functional.cross_entropy(logits, target.argmax(1), reduction="none")
        else:
            inverse += (logits - target).square().sum(1) / 2
    forward = (forward_error**2).sum(1) / 2
    torch.testing.assert_close(
        method.loss(method.columns(steps), images), torch.stack([inverse, forward], 1), rtol=1e-12, atol=1e-12
    )
    (found,) = rewards(method, steps)
    torch.testing.assert_close(found.flatten(), forward, rtol=1e-12, atol=1e-12)


def test_weights_of_the_losses_sum_to_1() -> None:
    assert method_of("icm", VECTOR, forward_share=0.25).weights == (0.75, 0.25)


def test_all_networks_are_trained() -> None:
    method = method_of("icm", IMAGES)
    assert list(method.trained_parameters()) == [name for name, _ in method.named_parameters()]
    steps = observed_steps(method, IMAGES)
    losses = method.loss(method.columns(steps), image_pairs(steps)).mean(0)
    for place, networks in enumerate((("features", "inverse"), ("features", "ahead"))):
        parts = [parameter for name, parameter in method.trained_parameters().items() if name.startswith(networks)]
        gradients = torch.autograd.grad(losses[place], parts, retain_graph=True)
        assert all(gradient.ne(0).any() for gradient in gradients)


def test_losses_vanish_with_linear_dynamics() -> None:
    """With o' = A o + B a, actions follow from two observations, and next observations from observation and action."""
    spaces = spaces_of(2, low=[-1, -1], high=[1, 1])
    method = method_of("icm", spaces, hidden=(32,), feature_size=4)
    turn = torch.tensor([[0.8, -0.3], [0.3, 0.8]], dtype=torch.float64)
    push = torch.tensor([[0.5, 0.1], [-0.2, 0.6]], dtype=torch.float64)
    before = normal("before", 128, 2)
    action = normal("actions", 128, 2).clamp(-1, 1)
    columns = torch.cat([before, before @ turn.t() + action @ push.t(), action], 1)
    first = method.loss(columns, None).mean(0)
    last = train(method, columns, None, steps=300, rate=2e-2)
    assert (last < 0.005 * first).all(), (first, last)


def test_losses_vanish_if_each_action_increments_one_coordinate() -> None:
    spaces = spaces_of(4, choices=(4,))
    method = method_of("icm", spaces, hidden=(32,), feature_size=4)
    before = normal("before", 128, 4)
    action = functional.one_hot(torch.arange(128) % 4).to(torch.float64)
    columns = torch.cat([before, before + action, action], 1)
    last = train(method, columns, None, steps=300, rate=2e-2)
    assert (last < 0.01).all(), last
    # as rewards: what it was trained on is expected, the same with another action is not
    steps = Transitions(
        torch.stack([before, before + action]),
        torch.empty(2, 128, 0),
        action.unsqueeze(0),
        torch.ones(1, 128, dtype=torch.bool),
    )
    other = Transitions(steps.features, steps.pixels, action.roll(1, 1).unsqueeze(0), steps.valid)
    expected, surprise = (rewards_of_part.mean() for rewards_of_part in rewards(method, steps, other))
    assert surprise > 30 * expected
