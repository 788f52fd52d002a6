"""Creating distributions of continuous actions by name, and checks of registered ones."""

import dataclasses
import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.distributions.beta import Beta
from lockstep.distributions.gaussian import Gaussian, StateGaussian
from lockstep.distributions.gsde import StateDependentExploration
from lockstep.models import registry
from lockstep.models.distributions import make_distribution
from lockstep.models.policy import Policy
from lockstep.models.settings import PolicyConfig

LOW, HIGH = np.float32([-1, -2, 0]), np.float32([1, 2, 5])
_EXAMPLE = Path(__file__).parents[2] / "examples" / "own_distribution.py"


def _example() -> type:
    """Return the class of the example, without registering it."""
    spec = importlib.util.spec_from_file_location("own_distribution_for_tests", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    registered = dict(registry._DISTRIBUTIONS)
    spec.loader.exec_module(module)
    registry._DISTRIBUTIONS.clear()
    registry._DISTRIBUTIONS.update(registered)
    return module.Laplace


Laplace = _example()


@pytest.mark.parametrize(
    ("name", "kind", "outputs", "features", "rest"),
    [
        ("gaussian", Gaussian, 3, 0, 3),
        ("gaussian-state-std", StateGaussian, 6, 0, 0),
        ("gsde", StateDependentExploration, 3, 64, 192),
        ("beta", Beta, 6, 0, 0),
    ],
)
def test_built_in_distributions(name: str, kind: type, outputs: int, features: int, rest: int) -> None:
    distribution = make_distribution(LOW, HIGH, PolicyConfig(distribution=name))
    assert type(distribution) is kind
    assert (len(distribution.initial_outputs), distribution.features) == (outputs, features)
    assert len(distribution.initial_log_std) == rest
    assert distribution.parameter_count == outputs + features + rest


@pytest.mark.parametrize(
    ("settings", "features"),
    [({}, 64), ({"head_hidden": (9, 5)}, 5), ({"core": "gru", "core_size": 24}, 24), ({"hidden": (16, 8)}, 8)],
)
def test_features_of_gsde_are_the_inputs_of_the_last_layer(settings: dict[str, Any], features: int) -> None:
    config = PolicyConfig(distribution="gsde", **settings)
    distribution = make_distribution(LOW, HIGH, config)
    policy = Policy(4, distribution, config, torch.Generator(), torch.float64)
    assert distribution.features == policy.policy_head.in_features == features
    state = torch.zeros(2, policy.state_size, dtype=torch.float64)
    outputs, *_ = policy.act(torch.ones(2, 4, dtype=torch.float64), None, state)
    of_features = outputs[:, 3 : 3 + features].abs().sum()
    assert of_features > 0
    gradients = torch.autograd.grad(of_features, list(policy.parameters()), allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in gradients), "no gradient passes into the features"
    # for features of magnitude 1, the expected squared norm of the noise is 1, as with the other distributions
    parameters = torch.tensor([[0.0] * 3 + [1.0] * features + list(distribution.initial_log_std)])
    std = distribution.named(parameters)["log_std"].exp()
    assert float(std.square().sum()) == pytest.approx(1, abs=2e-3)
    assert config.initial_std(3) == pytest.approx(3**-0.5, abs=1e-3)


def test_the_standard_deviation_of_a_state_starts_at_log_std() -> None:
    distribution = make_distribution(LOW, HIGH, PolicyConfig(distribution="gaussian-state-std", log_std=-0.7))
    parameters = torch.tensor([distribution.initial_outputs])
    assert distribution.named(parameters)["log_std"].tolist() == [[pytest.approx(-0.7)] * 3]
    far = distribution.named(torch.tensor([[0, 0, 0, -99.0, 99.0, 1.0]]))["log_std"]
    assert far.tolist() == [[-10, 5, 1]]


def test_example_equals_torch() -> None:
    laplace = Laplace(LOW, HIGH, PolicyConfig(log_std=0.3))
    parameters = torch.cat([torch.zeros(3), torch.tensor(laplace.initial_log_std)]).expand(4, -1).double()
    expected = torch.distributions.Laplace(parameters[:, :3], parameters[:, 3:].exp())
    assert expected.stddev[0, 0].item() == pytest.approx(math.exp(0.3))
    actions = torch.linspace(-2, 2, 12).view(4, 3).double()
    log_prob, entropy = laplace.log_prob_and_entropy(parameters, actions)
    torch.testing.assert_close(log_prob, expected.log_prob(actions).sum(-1))
    torch.testing.assert_close(entropy, expected.entropy().sum(-1))


@pytest.mark.parametrize(
    ("low", "settings", "line"),
    [
        (
            LOW,
            {"distribution": "betta"},
            "policy.distribution is 'betta': it must be one of gaussian, gaussian-state-std, gsde, beta",
        ),
        (
            np.float32([-1, -np.inf, 0]),
            {"distribution": "beta"},
            "policy.distribution is 'beta': it needs finite bounds, but component 1 of the actions is between -inf and 2",
        ),
        (
            np.float32([-1, 2, 0]),
            {"distribution": "beta"},
            "policy.distribution is 'beta': component 1 of the actions is always 2; its bounds must differ",
        ),
    ],
)
def test_errors_of_one_line(low: np.ndarray, settings: dict[str, object], line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)) as caught:
        make_distribution(low, HIGH, PolicyConfig(**settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"squash": True},
            "policy.squash is true: it can't be combined with policy.distribution 'beta', whose actions lie",
        ),
        (
            {"noise_exponent": 1.0},
            "policy.noise_exponent is 1.0: it can't be combined with policy.distribution 'beta', whose",
        ),
    ],
)
def test_options_that_beta_excludes(settings: dict[str, object], line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        PolicyConfig(distribution="beta", **settings)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"noise_exponent": 1.0}, "policy.noise_exponent is 1.0: it can't be combined with policy.distribution 'gsde'"),
        ({"sde_sample_freq": 0}, "policy.sde_sample_freq is 0: it must be at least 1"),
        (
            {"distribution": "gaussian", "sde_sample_freq": 8},
            "policy.sde_sample_freq is 8: it is for policy.distribution 'gsde'",
        ),
    ],
)
def test_options_of_gsde(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        PolicyConfig(**{"distribution": "gsde"} | settings)


def test_gsde_with_images_needs_head_layers() -> None:
    config = PolicyConfig(distribution="gsde", shared=True)
    arguments = torch.Generator(), torch.float32
    line = "policy.distribution is 'gsde': with images or a registered encoder, core or head, policy.head_hidden must name a width"
    with pytest.raises(ValueError, match=re.escape(line) + "$"):
        Policy(0, make_distribution(LOW, HIGH, config), config, *arguments, images=[(3, 40, 40)])
    config = dataclasses.replace(config, head_hidden=(12,))
    policy = Policy(0, make_distribution(LOW, HIGH, config), config, *arguments, images=[(3, 40, 40)])
    parameters, _ = policy(torch.zeros(2, 0), torch.zeros(2, 3 * 40 * 40, dtype=torch.uint8))
    assert parameters.shape == (2, 3 + 12 + 36)


class Doubled(torch.nn.Module):
    """Head that returns its inputs twice."""

    def __init__(self, inputs: int, config: PolicyConfig) -> None:
        super().__init__()
        self.output_size = 2 * inputs

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([inputs, inputs], 1)


def test_gsde_with_a_registered_head_needs_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._HEADS, "doubled", Doubled)
    settings = {"distribution": "gsde", "hidden": (6,), "head": "doubled"}
    line = "policy.head is 'doubled': with policy.distribution 'gsde', the last width of policy.head_hidden must be the output_size of the head"
    with pytest.raises(ValueError, match=re.escape(line) + "$"):
        PolicyConfig(**settings)
    line = "policy.head_hidden must end with 12, the output_size of head 'doubled'"
    arguments = torch.Generator(), torch.float32
    config = PolicyConfig(**settings, head_hidden=(11,))
    with pytest.raises(ValueError, match=re.escape(line) + "$"):
        Policy(4, make_distribution(LOW, HIGH, config), config, *arguments)
    config = dataclasses.replace(config, head_hidden=(12,))
    parameters, _ = Policy(4, make_distribution(LOW, HIGH, config), config, *arguments)(torch.ones(2, 4))
    assert parameters.shape == (2, 3 + 12 + 36)


class Dice(Laplace):
    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return super().sample(parameters, torch.randn_like(noise))


class Flat(Laplace):
    def log_prob_and_entropy(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        return super().log_prob_and_entropy(parameters, actions)[0], torch.zeros(())


class Short(Laplace):
    def __init__(self, low: np.ndarray, high: np.ndarray, policy: PolicyConfig) -> None:
        super().__init__(low[1:], high[1:], policy)


class Sizeless(Laplace):
    def __init__(self, low: np.ndarray, high: np.ndarray, policy: PolicyConfig) -> None:
        self.initial_outputs, self.initial_log_std = (0.0,) * len(low), (0.0,) * len(low)


class Unnamed(Laplace):
    def named(self, parameters: Tensor) -> dict[str, Tensor]:
        return {"location": parameters}


class Bounded(Laplace):
    bounded = True


@pytest.mark.parametrize(
    ("own", "line"),
    [
        (Dice, "two calls of sample with the same arguments differ; draw random numbers in noise only"),
        (Flat, "entropy has shape [], but must have [3]"),
        (Short, "its size is 2, but actions have 3 continuous components"),
        (Sizeless, "it does not set size"),
        (Unnamed, "named and meanings must have the same names in the same order"),
        (lambda *arguments: object(), "it must be a subclass of lockstep.ContinuousDistribution"),
        (Bounded, "its actions lie within their bounds already, so policy.squash must be off"),
    ],
)
def test_checks_of_registered_distributions(own: type, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_DISTRIBUTIONS", {"own": own})
    monkeypatch.setitem(registry._FACTORIES, "distribution", registry._DISTRIBUTIONS)
    with pytest.raises(ValueError, match=re.escape(f"policy.distribution is 'own': {line}") + "$"):
        make_distribution(LOW, HIGH, PolicyConfig(distribution="own", squash=own is Bounded))
