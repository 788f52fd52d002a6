"""Tests of the beta distribution against torch.distributions, its moments, and its own samples in NumPy."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.distributions.beta import Beta
from lockstep.randomness import stream

LOW, HIGH = np.array([-2.0, 0.0, 1.0]), np.array([2.0, 0.5, 9.0])
SIZE, ROWS = 3, 40
RANGE = torch.from_numpy(HIGH - LOW)


def parameters_of(seed: int, rows: int = ROWS) -> Tensor:
    return torch.from_numpy(stream(seed, "test").normal(0, 3, (rows, 2 * SIZE)))


def test_density_entropy_and_parameters_equal_torch() -> None:
    beta, parameters = Beta(LOW, HIGH, 0.0), parameters_of(1).requires_grad_()
    alpha, shape = beta.named(parameters).values()
    assert alpha.min() > 1
    expected = torch.distributions.Beta(alpha, shape)
    fractions = torch.from_numpy(stream(2, "test").uniform(0.001, 0.999, (ROWS, SIZE)))
    log_prob, entropy = beta.log_prob_and_entropy(parameters, torch.from_numpy(LOW) + fractions * RANGE)
    scale = RANGE.log().sum()
    torch.testing.assert_close(log_prob, expected.log_prob(fractions).sum(-1) - scale, rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(entropy, expected.entropy().sum(-1) + scale, rtol=1e-10, atol=1e-9)
    (gradient,) = torch.autograd.grad(log_prob.sum() + entropy.sum(), parameters)
    (reference,) = torch.autograd.grad(
        expected.log_prob(fractions).sum() + expected.entropy().sum(), parameters, retain_graph=True
    )
    torch.testing.assert_close(gradient, reference, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rows", [[-40.0, -40.0], [-1.0, 0.5], [4.0, 1.0], [60.0, 90.0]])
def test_samples_have_the_right_mean_and_deviation(rows: list[float]) -> None:
    draws, beta = 40_000, Beta(LOW[:1], HIGH[:1], 0.0)
    parameters = torch.tensor([rows], dtype=torch.float64).expand(draws, -1)
    actions = beta.sample(parameters, torch.from_numpy(beta.noise(stream(1, "test"), draws)))
    expected = torch.distributions.Beta(*(values[0] for values in beta.named(parameters).values()))
    fractions = (actions[:, 0] + 2) / 4
    deviation = expected.stddev.item()
    # five standard errors of a mean and, as the tails are lighter than those of a normal distribution, of a deviation
    assert fractions.mean().item() == pytest.approx(expected.mean.item(), abs=5 * deviation / math.sqrt(draws))
    assert fractions.std().item() == pytest.approx(deviation, rel=5 / math.sqrt(2 * draws))
    assert ((actions >= -2) & (actions <= 2)).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.float64, 1e-13)])
def test_samples_in_numpy_equal_those_in_pytorch(dtype: torch.dtype, tolerance: float) -> None:
    steps, beta = 5, Beta(LOW, HIGH, 0.0)
    noise = beta.noise(stream(3, "test"), steps, ROWS)
    parameters, noise = parameters_of(4).to(dtype), torch.from_numpy(noise).to(dtype)
    sample, out = beta.sampler(noise.numpy().copy(), None), np.empty((ROWS, SIZE), noise.numpy().dtype)
    for t in range(steps):
        assert sample(t, parameters.numpy(), out) is out
        np.testing.assert_allclose(out, beta.sample(parameters, noise[t]), rtol=tolerance, atol=tolerance)
        assert ((out >= LOW) & (out <= HIGH)).all()


def test_the_median_replaces_a_variate_whose_proposals_are_all_rejected() -> None:
    beta, parameters = Beta(LOW[:1], HIGH[:1], 0.0), torch.zeros(1, 2, dtype=torch.float64)
    noise = torch.zeros(1, 6, 2, 2, dtype=torch.float64)
    noise[:, :, 0] = -50.0  # 1 + c x < 0
    middle = beta.sample(parameters, noise.flatten(1))
    assert middle.item() == 0.0  # X = Y
    noise[:, :, 0, 1], noise[:, 3, 0, 1] = -50.0, 0.0  # the fourth proposal of Y is its median
    assert beta.sample(parameters, noise.flatten(1)).item() == 0.0
    out = np.empty((1, 1))
    assert beta.sampler(noise.flatten(1)[None].numpy(), None)(0, parameters.numpy(), out)[0, 0] == 0.0


def test_noise_depends_only_on_the_stream_and_has_fixed_shape() -> None:
    first, same, other = (Beta(LOW, HIGH, 0.0).noise(stream(1, "actions", key), 4, 2) for key in (0, 0, 1))
    assert first.shape == (4, 2, 24 * SIZE)
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(("log_std", "expected"), [(math.log(0.3), 0.6), (-4.5, 0.02222), (5.0, None)])
def test_initial_standard_deviation(log_std: float, expected: float | None) -> None:
    """It is at most that of a distribution slightly narrower than the uniform one."""
    beta = Beta(LOW[:1], HIGH[:1], log_std)
    alpha, shape = beta.named(torch.tensor([beta.initial_outputs], dtype=torch.float64)).values()
    assert torch.equal(alpha, shape)
    deviation = 4 * torch.distributions.Beta(alpha, shape).stddev.item()
    assert deviation == pytest.approx(expected or 4 / math.sqrt(4 * (2 * 1.1 + 1)), rel=1e-4)


def test_mode_and_actions_at_the_bounds() -> None:
    beta, parameters = Beta(LOW, HIGH, 0.0), parameters_of(6)
    alpha, shape = beta.named(parameters).values()
    expected = torch.from_numpy(LOW) + RANGE * (alpha - 1) / (alpha + shape - 2)
    torch.testing.assert_close(beta.mode(parameters), expected, rtol=1e-9, atol=1e-9)
    for bound in (LOW, HIGH):
        assert beta.log_prob(parameters, torch.from_numpy(bound).expand(ROWS, -1)).isfinite().all()
