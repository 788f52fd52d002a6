"""Tests of distributions: equal to torch.distributions, and samples with the right frequencies."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.distributions.discrete import Categorical
from lockstep.distributions.gaussian import Gaussian
from lockstep.distributions.joint import Joint, joint_of
from lockstep.randomness import stream

ROWS, SIZE = 40, 5


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(stream(seed, "test").standard_normal(shape))


def test_categorical_equals_torch() -> None:
    logits, actions = normal(1, ROWS, SIZE) * 3, torch.arange(ROWS) % SIZE
    log_probs, entropies = Categorical(SIZE).log_prob_and_entropy(logits, actions)
    expected = torch.distributions.Categorical(logits=logits)
    assert torch.allclose(log_probs, expected.log_prob(actions), rtol=0, atol=1e-13)
    assert torch.allclose(entropies, expected.entropy(), rtol=0, atol=1e-13)
    assert torch.equal(Categorical(SIZE).log_prob(logits, actions), log_probs)
    assert torch.equal(Categorical(SIZE).mode(logits), expected.probs.argmax(-1))


def test_gaussian_equals_torch() -> None:
    mean, log_std, actions = normal(2, ROWS, SIZE), normal(3, ROWS, SIZE), normal(4, ROWS, SIZE) * 2
    parameters = torch.cat([mean, log_std], -1)
    log_probs, entropies = Gaussian(SIZE).log_prob_and_entropy(parameters, actions)
    expected = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    assert torch.allclose(log_probs, expected.log_prob(actions), rtol=1e-13, atol=1e-12)
    assert torch.allclose(entropies, expected.entropy(), rtol=0, atol=1e-13)
    assert torch.equal(Gaussian(SIZE).log_prob(parameters, actions), log_probs)
    assert torch.equal(Gaussian(SIZE).mode(parameters), mean)


def test_the_argmax_of_logits_and_gumbel_noise_is_a_sample() -> None:
    draws = 40_000
    probabilities = torch.tensor([0.6, 0.25, 0.1, 0.05], dtype=torch.float64)
    categorical = Categorical(4)
    noise = torch.from_numpy(categorical.noise(stream(1, "test"), draws))
    actions = categorical.sample(probabilities.log().expand(draws, -1), noise)
    frequencies = np.bincount(actions.numpy(), minlength=4) / draws
    # four standard deviations of a proportion: 4 √(0.6 · 0.4 / 40,000) = 0.0098
    assert np.abs(frequencies - probabilities.numpy()).max() < 0.0098


def test_gaussian_samples_have_the_right_mean_and_deviation() -> None:
    draws = 40_000
    gaussian = Gaussian(2)
    parameters = torch.tensor([1.0, -2.0, np.log(0.5), np.log(3.0)], dtype=torch.float64).expand(draws, -1)
    actions = gaussian.sample(parameters, torch.from_numpy(gaussian.noise(stream(1, "test"), draws)))
    # four standard errors of a mean, σ / √n, and of a deviation, σ / √(2 n)
    assert actions.mean(0).tolist() == [pytest.approx(1.0, abs=0.01), pytest.approx(-2.0, abs=0.06)]
    assert actions.std(0).tolist() == [pytest.approx(0.5, abs=0.0075), pytest.approx(3.0, abs=0.045)]


@pytest.mark.parametrize("distribution", [Categorical(3), Gaussian(3)])
def test_noise_depends_only_on_the_stream(distribution: Categorical | Gaussian) -> None:
    first, same, other = (distribution.noise(stream(1, "actions", key), 4, 2) for key in (0, 0, 1))
    assert first.shape == (4, 2, 3)
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_actions_have_the_documented_types() -> None:
    logits, mean = torch.zeros(6, 3), torch.zeros(6, 8)
    assert Categorical(3).sample(logits, torch.rand(6, 3, generator=torch.Generator())).dtype == torch.int64
    assert Gaussian(4).sample(mean, torch.zeros(6, 4)).shape == (6, 4)


def test_samples_in_numpy_equal_those_in_pytorch() -> None:
    logits, gumbel = normal(5, ROWS, SIZE), Categorical(SIZE).noise(stream(6, "test"), ROWS)
    actions = np.empty(ROWS, dtype=np.int64)
    assert Categorical(SIZE).sampler(gumbel[np.newaxis].copy(), None)(0, logits.numpy(), actions) is actions
    assert np.array_equal(actions, Categorical(SIZE).sample(logits, torch.from_numpy(gumbel)))
    mean, log_std, noise = normal(7, ROWS, SIZE), normal(8, SIZE), normal(9, ROWS, SIZE)
    drawn = np.empty((ROWS, SIZE))
    gaussian = Gaussian(SIZE)
    assert gaussian.sampler(noise.numpy()[np.newaxis], log_std.numpy())(0, mean.numpy(), drawn) is drawn
    expected = gaussian.sample(torch.cat([mean, log_std.expand_as(mean)], -1), noise)
    np.testing.assert_allclose(drawn, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("choices", "size"), [((3, 4, 2), 0), ((3, 2), 2)])
def test_joint_is_the_product_of_its_components(choices: tuple[int, ...], size: int) -> None:
    joint, options = Joint(choices, Gaussian(size) if size else None), sum(choices)
    parameters = normal(5, ROWS, options + 2 * size) * 2
    noise = torch.from_numpy(joint.noise(stream(6, "test"), ROWS))
    actions = joint.sample(parameters, noise)
    assert actions.shape == (ROWS, len(choices) + size)
    categoricals = [
        torch.distributions.Categorical(logits=logits) for logits in parameters[:, :options].split(choices, -1)
    ]
    mean, log_std = parameters[:, options:].split(size, -1) if size else (parameters[:, :0], parameters[:, :0])
    normals = torch.distributions.Normal(mean, log_std.exp())
    log_probs, entropies = joint.log_prob_and_entropy(parameters, actions)
    expected = sum(categorical.log_prob(actions[:, k]) for k, categorical in enumerate(categoricals))
    expected = expected + normals.log_prob(actions[:, len(choices) :]).sum(-1)
    assert torch.allclose(log_probs, expected, rtol=0, atol=1e-12)
    assert torch.allclose(
        entropies,
        sum(categorical.entropy() for categorical in categoricals) + normals.entropy().sum(-1),
        rtol=0,
        atol=1e-12,
    )
    assert torch.equal(joint.mode(parameters)[:, 1], categoricals[1].probs.argmax(-1).double())
    assert torch.equal(joint.mode(parameters)[:, len(choices) :], mean)
    # a row of the head has the logits and the means; all rows have the same deviations
    sample = joint.sampler(noise.numpy()[np.newaxis].copy(), log_std[0].numpy() if size else None)
    drawn = sample(0, parameters[:, : options + size].numpy(), np.empty(actions.shape))
    same_deviations = torch.cat([parameters[:, : options + size], log_std[:1].expand(ROWS, -1)], -1)
    np.testing.assert_allclose(drawn, joint.sample(same_deviations, noise).numpy(), rtol=0, atol=1e-12)


def test_simple_actions_have_no_joint_distribution() -> None:
    kinds = [joint_of(*parts) for parts in (((4,), None), ((), Gaussian(3)), ((4,), Gaussian(1)), ((2, 2), None))]
    assert [type(kind) for kind in kinds] == [Categorical, Gaussian, Joint, Joint]
