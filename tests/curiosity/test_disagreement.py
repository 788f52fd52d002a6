"""An ensemble against its members one by one, and what it takes to agree."""

import pytest
import torch
from tests.curiosity.rollouts import (
    IMAGES,
    ONLY_IMAGES,
    VECTOR,
    drawn,
    method_of,
    pairs,
    ready,
    rewards,
    spaces_of,
    train,
)
from torch import Tensor

from lockstep.curiosity.curiosity import Transitions
from lockstep.curiosity.disagreement import _BLOCK, Ensemble
from lockstep.envs.spaces import Spaces

SPACES = spaces_of(3, low=[-1], high=[1])


def members(ensemble: Ensemble, rows: Tensor) -> Tensor:
    """What each gives, as an ordinary network."""
    parts = zip(*(own.detach() for own in ensemble.parameters()), strict=True)
    return torch.stack(
        [(rows @ first + first_bias).clamp_min(0) @ second + bias for first, first_bias, second, bias in parts]
    )


@pytest.mark.parametrize("ensemble", [1, 3])
@pytest.mark.parametrize("spaces", [VECTOR, SPACES, IMAGES, ONLY_IMAGES])
def test_rewards_and_loss_are_those_of_the_members(spaces: Spaces, ensemble: int) -> None:
    method = method_of("disagreement", spaces, ensemble=ensemble)
    for own in method.parts().values():
        own.data += drawn("noise", *own.shape, scale=0.1)  # biases begin at zero
    steps = ready(method, spaces)
    images, seen = steps.pixels.flatten(0, 1), steps.features.flatten(0, 1)
    with torch.no_grad():
        features = method.encoder(seen, method.normalize_images(images) if images.numel() else None).view(10, 4, 6)
    guesses = members(method.ensemble, torch.cat([features[:-1], steps.actions], 2).flatten(0, 1))
    target = features[1:].flatten(0, 1)
    (found,) = rewards(method, steps)
    spread = (guesses - guesses.mean(0)).square().mean(0).mean(1)
    torch.testing.assert_close(found.flatten(), spread, rtol=1e-10, atol=1e-12)
    assert (spread.min() > 1e-3) == (ensemble > 1)
    lost = (guesses - target).square().mean(2).sum(0)
    assert method.columns(steps).shape == (36, method.width)
    torch.testing.assert_close(
        method.loss(method.columns(steps), pairs(steps)), lost.unsqueeze(1), rtol=1e-10, atol=1e-12
    )


def test_steps_go_through_the_ensemble_in_blocks() -> None:
    method = method_of("disagreement", VECTOR)
    steps = ready(method, VECTOR, 2 * _BLOCK // 10 + 3, 10)
    given = method.columns(steps)[:, : 6 + 4]
    spread = members(method.ensemble, given).var(0, correction=0).mean(1)
    torch.testing.assert_close(rewards(method, steps)[0].flatten(), spread, rtol=1e-10, atol=1e-12)


def test_members_start_different_and_orthogonal() -> None:
    ensemble = method_of("disagreement", VECTOR, ensemble=4, hidden=(8,)).ensemble
    for weights, gain in ((ensemble.first, 2.0), (ensemble.second, 1.0)):
        for place, own in enumerate(weights.detach()):
            rows = own.t() if own.shape[0] > own.shape[1] else own
            torch.testing.assert_close(
                rows @ rows.t(), gain * torch.eye(len(rows), dtype=torch.float64), rtol=0, atol=1e-6
            )
            assert all((own - other).abs().mean() > 0.1 for other in weights.detach()[:place])


def test_only_the_ensemble_is_trained() -> None:
    method = method_of("disagreement", IMAGES)
    fixed = [parameter.clone() for parameter in method.encoder.parameters()]
    assert {name.partition(".")[0] for name in method.parts()} == {"ensemble"}
    steps = ready(method, IMAGES)
    before = [parameter.detach().clone() for parameter in method.parts().values()]
    train(method, method.columns(steps), pairs(steps), steps=3)
    assert all(torch.equal(a, b) for a, b in zip(fixed, method.encoder.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(before, method.parts().values(), strict=True))


def transitions(now: Tensor, then: Tensor, action: Tensor) -> Transitions:
    """One step of as many environments."""
    count = len(now)
    return Transitions(
        torch.stack([now, then]), torch.empty(2, count, 0), action.unsqueeze(0), torch.ones(1, count, dtype=torch.bool)
    )


def test_members_come_to_agree_on_what_was_seen() -> None:
    method = method_of("disagreement", SPACES, hidden=(32,))
    now, action = drawn("now", 256, 3), drawn("action", 256, 1).clamp(-1, 1)
    steps = transitions(now, 0.9 * now + 0.3 * action, action)
    elsewhere = transitions(now - 6, 0.9 * (now - 6) + 0.3 * action, action)
    before, far = (own.mean() for own in rewards(method, steps, elsewhere))
    lost = train(method, method.columns(steps), None, steps=300, rate=2e-2)
    seen, unseen = (own.mean() for own in rewards(method, steps, elsewhere))
    assert lost < 0.05
    assert seen < 0.01 * before
    assert unseen > 0.02 * far
    assert unseen > 50 * seen


def test_what_is_random_brings_no_reward_for_long() -> None:
    """What follows can't be told, so the loss stays; but all members come to predict its mean."""
    method = method_of("disagreement", SPACES)
    now, action = drawn("now", 2048, 3), drawn("action", 2048, 1).clamp(-1, 1)
    steps = transitions(now, drawn("then", 2048, 3), action)
    (before,) = rewards(method, steps)
    first = method.loss(method.columns(steps), None).mean()
    last = train(method, method.columns(steps), None, steps=100, rate=2e-2)
    (after,) = rewards(method, steps)
    assert last > 0.2 * first
    assert after.mean() < 0.02 * before.mean()
