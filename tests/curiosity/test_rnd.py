"""Random network distillation: a trained predictor and a fixed target."""

import pytest
import torch
from tests.curiosity.rollouts import (
    IMAGES,
    ONLY_IMAGES,
    VECTOR,
    image_pairs,
    method_of,
    observed_steps,
    rewards,
    rollout_of,
    train,
)
from torch import Tensor

from lockstep.curiosity.curiosity import Transitions
from lockstep.envs.spaces import Spaces


def next_observation_outputs(network: torch.nn.Module, method: object, steps: Transitions) -> Tensor:
    """Return the output of a network for all next observations, computed in one batch."""
    images = image_pairs(steps)
    with torch.no_grad():
        found: Tensor = network(
            steps.features[1:].flatten(0, 1), None if images is None else method.normalize_images(images[1])
        )  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("channels", [None, 1])
@pytest.mark.parametrize("spaces", [VECTOR, IMAGES, ONLY_IMAGES])
def test_rewards_and_loss_equal_the_prediction_error(spaces: Spaces, channels: int | None) -> None:
    method = method_of("rnd", spaces, channels=channels)
    steps = observed_steps(method, spaces)
    expected = (
        (
            next_observation_outputs(method.predictor, method, steps)
            - next_observation_outputs(method.target, method, steps)
        )
        .square()
        .mean(1)
    )
    assert expected.min() > 0
    (found,) = rewards(method, steps)
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-12, atol=1e-12)
    loss = method.loss(method.columns(steps), image_pairs(steps))
    assert loss.shape == (36, 1)
    torch.testing.assert_close(loss.squeeze(1), expected, rtol=1e-12, atol=1e-12)


def test_shards_are_independent() -> None:
    method = method_of("rnd", VECTOR)
    first, second = (observed_steps(method, VECTOR, name=name) for name in "ab")
    assert torch.equal(
        torch.stack(rewards(method, first, second)),
        torch.cat([torch.stack(rewards(method, steps)) for steps in (first, second)]),
    )


@pytest.mark.parametrize("spaces", [VECTOR, IMAGES])
def test_the_target_is_never_trained(spaces: Spaces) -> None:
    method = method_of("rnd", spaces)
    target = [parameter.clone() for parameter in method.target.parameters()]
    predictor = [parameter.detach().clone() for parameter in method.predictor.parameters()]
    assert not any(parameter.requires_grad for parameter in method.target.parameters())
    assert {name.partition(".")[0] for name in method.trained_parameters()} == {"predictor"}
    assert len(method.trained_parameters()) == len(predictor) > len(target)  # a hidden layer more
    steps = observed_steps(method, spaces)
    train(method, method.columns(steps), image_pairs(steps), steps=3)
    assert all(torch.equal(a, b) for a, b in zip(target, method.target.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(predictor, method.predictor.parameters(), strict=True))


def test_rewards_of_observed_vectors_decrease() -> None:
    method = method_of("rnd", VECTOR, hidden=(64,))
    rollout = rollout_of(VECTOR, 32, 4)
    rollout.observations[..., 0].abs_()
    method.observe([rollout], lambda rows: rows.sum(0))
    steps = method.transitions(rollout)
    elsewhere = Transitions(-3 - steps.features.abs(), steps.pixels, steps.actions, steps.valid)
    before = rewards(method, steps)[0].mean()
    train(method, method.columns(steps), None, steps=400, rate=1e-2)
    observed, unobserved = (rewards_of_part.mean() for rewards_of_part in rewards(method, steps, elsewhere))
    assert observed < 1e-3 * before
    assert unobserved > 50 * observed


def test_rewards_of_observed_images_decrease() -> None:
    method = method_of("rnd", ONLY_IMAGES)
    steps, other = observed_steps(method, ONLY_IMAGES, 4, 2), observed_steps(method, ONLY_IMAGES, 4, 2, "other")
    before = rewards(method, steps)[0].mean()
    train(method, method.columns(steps), image_pairs(steps), steps=300, rate=1e-2)
    observed, unobserved = (rewards_of_part.mean() for rewards_of_part in rewards(method, steps, other))
    assert observed < 0.01 * before
    assert unobserved > 5 * observed
