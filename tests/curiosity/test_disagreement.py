"""Disagreement: rewards and losses compared with single members, and their decrease through training."""

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
from torch import Tensor

from lockstep.curiosity.curiosity import Transitions
from lockstep.curiosity.disagreement import _BLOCK, Ensemble
from lockstep.envs.spaces import Spaces

SPACES = spaces_of(3, low=[-1], high=[1])


def member_predictions(ensemble: Ensemble, rows: Tensor) -> Tensor:
    """Return the prediction of each member, computed as an ordinary network."""
    parts = zip(*(parameter.detach() for parameter in ensemble.parameters()), strict=True)
    return torch.stack(
        [(rows @ first + first_bias).clamp_min(0) @ second + bias for first, first_bias, second, bias in parts]
    )


@pytest.mark.parametrize("ensemble", [1, 3])
@pytest.mark.parametrize("spaces", [VECTOR, SPACES, IMAGES, ONLY_IMAGES])
def test_rewards_and_loss_equal_those_of_single_members(spaces: Spaces, ensemble: int) -> None:
    method = method_of("disagreement", spaces, ensemble=ensemble)
    for parameter in method.trained_parameters().values():
        parameter.data += normal("noise", *parameter.shape, scale=0.1)  # biases begin at zero
    steps = observed_steps(method, spaces)
    images, observed = steps.pixels.flatten(0, 1), steps.features.flatten(0, 1)
    with torch.no_grad():
        features = method.encoder(observed, method.normalize_images(images) if images.numel() else None).view(10, 4, 6)
    predictions = member_predictions(method.ensemble, torch.cat([features[:-1], steps.actions], 2).flatten(0, 1))
    target = features[1:].flatten(0, 1)
    (found,) = rewards(method, steps)
    variance = (predictions - predictions.mean(0)).square().mean(0).mean(1)
    torch.testing.assert_close(found.flatten(), variance, rtol=1e-10, atol=1e-12)
    assert (variance.min() > 1e-3) == (ensemble > 1)
    losses = (predictions - target).square().mean(2).sum(0)
    assert method.columns(steps).shape == (36, method.width)
    torch.testing.assert_close(
        method.loss(method.columns(steps), image_pairs(steps)), losses.unsqueeze(1), rtol=1e-10, atol=1e-12
    )


def test_steps_are_evaluated_in_blocks() -> None:
    method = method_of("disagreement", VECTOR)
    steps = observed_steps(method, VECTOR, 2 * _BLOCK // 10 + 3, 10)
    inputs = method.columns(steps)[:, : 6 + 4]
    variance = member_predictions(method.ensemble, inputs).var(0, correction=0).mean(1)
    torch.testing.assert_close(rewards(method, steps)[0].flatten(), variance, rtol=1e-10, atol=1e-12)


def test_initial_members_are_orthogonal_and_differ() -> None:
    ensemble = method_of("disagreement", VECTOR, ensemble=4, hidden=(8,)).ensemble
    for weights, gain in ((ensemble.first, 2.0), (ensemble.second, 1.0)):
        for place, member in enumerate(weights.detach()):
            rows = member.t() if member.shape[0] > member.shape[1] else member
            torch.testing.assert_close(
                rows @ rows.t(), gain * torch.eye(len(rows), dtype=torch.float64), rtol=0, atol=1e-6
            )
            assert all((member - other).abs().mean() > 0.1 for other in weights.detach()[:place])


def test_only_the_ensemble_is_trained() -> None:
    method = method_of("disagreement", IMAGES)
    fixed = [parameter.clone() for parameter in method.encoder.parameters()]
    assert {name.partition(".")[0] for name in method.trained_parameters()} == {"ensemble"}
    steps = observed_steps(method, IMAGES)
    before = [parameter.detach().clone() for parameter in method.trained_parameters().values()]
    train(method, method.columns(steps), image_pairs(steps), steps=3)
    assert all(torch.equal(a, b) for a, b in zip(fixed, method.encoder.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(before, method.trained_parameters().values(), strict=True))


def transitions(observations: Tensor, next_observations: Tensor, actions: Tensor) -> Transitions:
    """Return transitions of one step, with one environment per row."""
    count = len(observations)
    return Transitions(
        torch.stack([observations, next_observations]),
        torch.empty(2, count, 0),
        actions.unsqueeze(0),
        torch.ones(1, count, dtype=torch.bool),
    )


def test_rewards_of_observed_transitions_decrease() -> None:
    method = method_of("disagreement", SPACES, hidden=(32,))
    observations, actions = normal("now", 256, 3), normal("action", 256, 1).clamp(-1, 1)
    steps = transitions(observations, 0.9 * observations + 0.3 * actions, actions)
    elsewhere = transitions(observations - 6, 0.9 * (observations - 6) + 0.3 * actions, actions)
    before, far = (rewards_of_part.mean() for rewards_of_part in rewards(method, steps, elsewhere))
    loss = train(method, method.columns(steps), None, steps=300, rate=2e-2)
    observed, unobserved = (rewards_of_part.mean() for rewards_of_part in rewards(method, steps, elsewhere))
    assert loss < 0.05
    assert observed < 0.01 * before
    assert unobserved > 0.02 * far
    assert unobserved > 50 * observed


def test_rewards_of_random_transitions_decrease() -> None:
    """Random next observations cannot be predicted, so the loss stays; but all members converge to their mean."""
    method = method_of("disagreement", SPACES)
    observations, actions = normal("now", 2048, 3), normal("action", 2048, 1).clamp(-1, 1)
    steps = transitions(observations, normal("then", 2048, 3), actions)
    (before,) = rewards(method, steps)
    first = method.loss(method.columns(steps), None).mean()
    last = train(method, method.columns(steps), None, steps=100, rate=2e-2)
    (after,) = rewards(method, steps)
    assert last > 0.2 * first
    assert after.mean() < 0.02 * before.mean()
