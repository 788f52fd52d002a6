"""Random network distillation: a predictor, and a target that nobody trains."""

import pytest
import torch
from tests.curiosity.rollouts import IMAGES, ONLY_IMAGES, VECTOR, method_of, pairs, ready, rewards, rollout_of, train
from torch import Tensor

from lockstep.curiosity.curiosity import Transitions
from lockstep.envs.spaces import Spaces


def plain(network: torch.nn.Module, method: object, steps: Transitions) -> Tensor:
    """A network on what every step led to, in one go."""
    images = pairs(steps)
    with torch.no_grad():
        found: Tensor = network(
            steps.features[1:].flatten(0, 1), None if images is None else method.normalize_images(images[1])
        )  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("channels", [None, 1])
@pytest.mark.parametrize("spaces", [VECTOR, IMAGES, ONLY_IMAGES])
def test_rewards_and_loss_are_the_predictors_error(spaces: Spaces, channels: int | None) -> None:
    method = method_of("rnd", spaces, channels=channels)
    steps = ready(method, spaces)
    expected = (plain(method.predictor, method, steps) - plain(method.target, method, steps)).square().mean(1)
    assert expected.min() > 0
    (found,) = rewards(method, steps)
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-12, atol=1e-12)
    loss = method.loss(method.columns(steps), pairs(steps))
    assert loss.shape == (36, 1)
    torch.testing.assert_close(loss.squeeze(1), expected, rtol=1e-12, atol=1e-12)


def test_shards_do_not_see_each_other() -> None:
    method = method_of("rnd", VECTOR)
    first, second = (ready(method, VECTOR, name=name) for name in "ab")
    assert torch.equal(
        torch.stack(rewards(method, first, second)),
        torch.cat([torch.stack(rewards(method, own)) for own in (first, second)]),
    )


@pytest.mark.parametrize("spaces", [VECTOR, IMAGES])
def test_the_target_is_never_trained(spaces: Spaces) -> None:
    method = method_of("rnd", spaces)
    target = [parameter.clone() for parameter in method.target.parameters()]
    predictor = [parameter.detach().clone() for parameter in method.predictor.parameters()]
    assert not any(parameter.requires_grad for parameter in method.target.parameters())
    assert {name.partition(".")[0] for name in method.parts()} == {"predictor"}
    assert len(method.parts()) == len(predictor) > len(target)  # a hidden layer more
    steps = ready(method, spaces)
    train(method, method.columns(steps), pairs(steps), steps=3)
    assert all(torch.equal(a, b) for a, b in zip(target, method.target.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(predictor, method.predictor.parameters(), strict=True))


def test_what_was_seen_is_no_longer_new_and_the_rest_is() -> None:
    method = method_of("rnd", VECTOR, hidden=(64,))
    rollout = rollout_of(VECTOR, 32, 4)
    rollout.observations[..., 0].abs_()
    method.observe([rollout], lambda rows: rows.sum(0))
    steps = method.transitions(rollout)
    elsewhere = Transitions(-3 - steps.features.abs(), steps.pixels, steps.actions, steps.valid)
    before = rewards(method, steps)[0].mean()
    train(method, method.columns(steps), None, steps=400, rate=1e-2)
    seen, unseen = (own.mean() for own in rewards(method, steps, elsewhere))
    assert seen < 1e-3 * before
    assert unseen > 50 * seen


def test_images_that_were_seen_are_no_longer_new() -> None:
    method = method_of("rnd", ONLY_IMAGES)
    steps, other = ready(method, ONLY_IMAGES, 4, 2), ready(method, ONLY_IMAGES, 4, 2, "other")
    before = rewards(method, steps)[0].mean()
    train(method, method.columns(steps), pairs(steps), steps=300, rate=1e-2)
    seen, unseen = (own.mean() for own in rewards(method, steps, other))
    assert seen < 0.01 * before
    assert unseen > 5 * seen
