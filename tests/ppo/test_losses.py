"""Tests of PPO's losses: the clip on both sides, its limit, the divergence and the value clip."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lockstep.distributions.discrete import Categorical
from lockstep.ppo.losses import clipped_surrogate, divergence, penalized_surrogate, value_loss


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # A > 0: raise the probability, up to a ratio of 1 + ε = 1.2
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.0),
        (1.5, 2.0, -2.4, 0.0),  # min(1.5·2, 1.2·2)
        # min(0.5·2, 0.8·2): below the clip the gradient remains, so that a bad step can be undone
        (0.5, 2.0, -1.0, -2.0),
        # A < 0: lower the probability, down to a ratio of 1 - ε = 0.8
        (1.0, -2.0, 2.0, 2.0),
        (0.9, -2.0, 1.8, 2.0),
        (0.5, -2.0, 1.6, 0.0),  # min(0.5·-2, 0.8·-2)
        (1.5, -2.0, 3.0, 2.0),  # min(1.5·-2, 1.2·-2)
    ],
)
def test_the_clipped_surrogate(ratio: float, advantage: float, loss: float, slope: float) -> None:
    log_ratio = numbers(math.log(ratio)).requires_grad_()
    result = clipped_surrogate(log_ratio, numbers(advantage), 0.2)
    (gradient,) = torch.autograd.grad(result.sum(), log_ratio)
    assert result.item() == pytest.approx(loss, abs=1e-12)
    assert gradient.item() / ratio == pytest.approx(slope, abs=1e-12)  # d/dr, from d/d log r = r d/dr


def test_an_infinite_clip_gives_the_plain_policy_gradient() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(50, 4, generator=generator, dtype=torch.float64).requires_grad_()
    actions = torch.randint(4, (50,), generator=generator)
    advantage = torch.randn(50, generator=generator, dtype=torch.float64)
    log_probs = Categorical(4).log_prob(logits, actions)
    surrogate = clipped_surrogate(log_probs - log_probs.detach(), advantage, math.inf).sum()
    (result,) = torch.autograd.grad(surrogate, logits, retain_graph=True)
    (expected,) = torch.autograd.grad(-(advantage * log_probs).sum(), logits)
    assert torch.allclose(result, expected, rtol=0, atol=1e-14)


@given(st.floats(-30, 30))
def test_the_divergence_is_never_negative(log_ratio: float) -> None:
    result = divergence(numbers(log_ratio)).item()
    assert result >= 0
    assert result == pytest.approx(math.expm1(log_ratio) - log_ratio, rel=1e-12, abs=1e-12)


def test_the_divergence_is_accurate_near_zero() -> None:
    # x²/2 for small x; written as exp(x) - 1 - x in float32 it would be 0 or negative
    assert divergence(torch.tensor([1e-3])).item() == pytest.approx(5e-7, rel=0.2)


def test_the_divergence_has_the_right_mean() -> None:
    # Σ p (p'/p - 1 - log p'/p) = Σ p' - Σ p + Σ p log p/p' = KL(p ‖ p')
    old, new = numbers(0.5, 0.3, 0.2), numbers(0.2, 0.3, 0.5)
    result = (old * divergence((new / old).log())).sum()
    assert result.item() == pytest.approx((old * (old / new).log()).sum().item(), abs=1e-14)


def test_the_penalized_surrogate() -> None:
    # r = 2, A = 3, β = 0.5: -6 + 0.5 (1 - log 2)
    result = penalized_surrogate(numbers(math.log(2)), numbers(3), 0.5)
    assert result.item() == pytest.approx(-6 + 0.5 * (1 - math.log(2)), abs=1e-12)


@pytest.mark.parametrize(
    ("value", "target", "old", "loss", "slope"),
    [
        (1.1, 2.0, 1.0, 0.405, -0.9),  # moved by 0.1 < 0.2: ½ 0.9²
        # moved too far toward the target: ½ (1.2 - 2)² is larger than ½ 0.5², and its gradient is 0
        (1.5, 2.0, 1.0, 0.320, 0.0),
        (0.5, 2.0, 1.0, 1.125, -1.5),  # moved too far away: ½ 1.5² is larger than ½ (0.8 - 2)²
        (0.5, 0.0, 1.0, 0.320, 0.0),  # downward: ½ 0.8² is larger than ½ 0.5²
    ],
)
def test_the_clipped_value_loss(value: float, target: float, old: float, loss: float, slope: float) -> None:
    values = numbers(value).requires_grad_()
    result = value_loss(values, numbers(target), numbers(old), 0.2)
    (gradient,) = torch.autograd.grad(result.sum(), values)
    assert result.item() == pytest.approx(loss, abs=1e-12)
    assert gradient.item() == pytest.approx(slope, abs=1e-12)


def test_the_value_loss_without_clip_is_half_the_squared_error() -> None:
    assert value_loss(numbers(1.5), numbers(2.0), numbers(1.0), None).item() == pytest.approx(0.125)
