"""Generalized state-dependent exploration: densities, samples, and noise over time."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.distributions.gsde import StateDependentExploration
from lockstep.randomness import stream

SIZE, FEATURES = 2, 3
GSDE = StateDependentExploration(SIZE, FEATURES)


def parameters_of(rows: int) -> Tensor:
    """Return parameters with different means, features and log standard deviations."""
    return torch.from_numpy(stream(1, "test").standard_normal((rows, GSDE.parameter_count)))


def test_densities_are_normal_with_the_deviation_of_the_noise() -> None:
    parameters, actions = parameters_of(20), torch.linspace(-3, 3, 40, dtype=torch.float64).view(20, 2)
    mean, features, log_std = parameters.split([2, 3, 6], -1)
    std = torch.empty(20, 2, dtype=torch.float64)
    for row in range(20):
        for component in range(2):
            terms = [(features[row, i] * log_std[row, 3 * component + i].exp()) ** 2 for i in range(3)]
            std[row, component] = (sum(terms) + 1e-6) ** 0.5
    expected = torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)
    log_prob, entropy = GSDE.log_prob_and_entropy(parameters, actions)
    torch.testing.assert_close(log_prob, expected.log_prob(actions))
    torch.testing.assert_close(entropy, expected.entropy())
    torch.testing.assert_close(GSDE.named(parameters)["log_std"], std.log())
    assert torch.equal(GSDE.mode(parameters), mean)


def test_samples_have_the_mean_and_deviation_of_the_density() -> None:
    draws = 40_000
    parameters = parameters_of(1).expand(draws, -1)
    actions = GSDE.sample(parameters, torch.from_numpy(GSDE.noise(stream(2, "test"), draws)))
    named = {name: part[0] for name, part in GSDE.named(parameters).items()}
    std = named["log_std"].exp()
    # four standard errors of a mean, σ / √n, and of a deviation, σ / √(2 n)
    assert ((actions.mean(0) - named["mean"]).abs() < 0.02 * std).all()
    assert ((actions.std(0) - std).abs() < 0.015 * std).all()


@pytest.mark.parametrize(("interval", "changes"), [(1, [1, 2, 3, 4, 5, 6]), (4, [4]), (9, [])])
def test_matrices_change_after_each_interval(interval: int, changes: list[int]) -> None:
    distribution = StateDependentExploration(SIZE, FEATURES, 0.0, interval)
    noise = distribution.noise(stream(3, "test"), 7, 5)
    assert noise.shape == (7, 5, SIZE * FEATURES)
    assert [t for t in range(1, 7) if not np.array_equal(noise[t], noise[t - 1])] == changes
    assert len({row.tobytes() for row in noise[0]}) == 5, "environments share a matrix"


def test_noise_of_one_matrix_is_a_function_of_the_features() -> None:
    parameters = parameters_of(1).repeat(2, 1)
    noise = torch.from_numpy(GSDE.noise(stream(4, "test"), 1)).expand(2, -1)
    first, second = GSDE.sample(parameters, noise)
    assert torch.equal(first, second)
    parameters[1, SIZE : SIZE + FEATURES] *= 2
    first, second = GSDE.sample(parameters, noise) - GSDE.mode(parameters)
    torch.testing.assert_close(second, 2 * first)
