"""Tests of the policy and its flat buffer."""

import math

import pytest
import torch
from torch import nn

from lockstep.distributions.discrete import Categorical
from lockstep.distributions.gaussian import Gaussian
from lockstep.models import registry
from lockstep.models.flat import FlatParameters
from lockstep.models.policy import Policy
from lockstep.models.settings import PolicyConfig

OBSERVATION, HEAD = 6, 3


def policy_of(std: int = HEAD, seed: int = 1, **settings: object) -> Policy:
    config = PolicyConfig(**{"hidden": (8, 5), **settings})
    distribution = Gaussian(HEAD, config.initial_log_std(HEAD)) if std else Categorical(HEAD)
    return Policy(OBSERVATION, distribution, config, torch.Generator().manual_seed(seed), torch.float64)


def observations(count: int = 7) -> torch.Tensor:
    return torch.rand(count, OBSERVATION, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("std", [0, HEAD])
def test_parts_cover_every_parameter_once(shared: bool, std: int) -> None:
    policy = policy_of(std, shared=shared)
    listed = [parameter for part in policy.parameter_groups().values() for parameter in part.values()]
    assert len({id(parameter) for parameter in listed}) == len(listed)
    assert {id(parameter) for parameter in listed} == {id(parameter) for parameter in policy.parameters()}
    # separate: 2 × (2 layers) + 2 heads; shared: 2 layers + 2 heads; each a matrix and a vector
    assert len(listed) == (8 if shared else 12) + (std > 0)


@pytest.mark.parametrize("shared", [False, True])
def test_a_part_changes_only_its_outputs(shared: bool) -> None:
    """With separate trunks the value part changes only the values and the policy part only the policy."""
    policy = policy_of(shared=shared)
    flat = FlatParameters(policy.parameter_groups())
    for name, moves_policy, moves_values in (("policy", True, shared), ("value", False, True)):
        heads, values = policy(observations())
        flat.buffer[flat.slices[name]] += 0.1
        new_heads, new_values = policy(observations())
        assert (not torch.equal(heads, new_heads)) is moves_policy
        assert (not torch.equal(values, new_values)) is moves_values


def test_the_buffer_holds_all_parameters() -> None:
    policy = policy_of()
    before = policy(observations())[0].detach()
    flat = FlatParameters(policy.parameter_groups())
    assert torch.equal(policy(observations())[0], before)
    assert len(flat.buffer) == sum(parameter.numel() for parameter in policy.parameters())
    assert [*flat.slices] == ["policy", "value"]
    assert flat.slices["policy"].stop == flat.slices["value"].start
    assert flat.slices["value"].stop == len(flat.buffer)
    flat.buffer.zero_()
    heads, values = policy(observations())
    assert not heads.any()
    assert not values.any()
    next(iter(policy.parameters())).data.fill_(1.0)
    assert flat.buffer.sum() == HEAD  # log_std comes first


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shared": True},
        {"value_hidden": (12, 9, 4), "activation": "gelu"},
        {"head_hidden": (7, 4)},
        {"head_hidden": (7,), "hidden": (), "shared": True},
    ],
)
def test_act_and_value_equal_forward(settings: dict[str, object]) -> None:
    policy = policy_of(**settings)
    heads, values = policy(observations())
    assert torch.equal(heads, policy.act(observations())[0])
    assert torch.equal(values, policy.value(observations()))
    assert heads.shape == (7, 2 * HEAD)
    assert values.shape == (7,)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_critic_has_hidden_layers_of_its_own(core: str) -> None:
    policy = policy_of(value_hidden=(12, 9, 4), core=core, core_size=7)
    assert [layer.out_features for layer in policy.trunk[::2]] == [8, 5]
    assert [layer.out_features for layer in policy.critic_trunk[::2]] == [12, 9, 4]
    assert policy.value_head.in_features == (4 if core == "none" else 7)


@pytest.mark.parametrize(("core", "width"), [("none", 5), ("gru", 7)])
@pytest.mark.parametrize("shared", [False, True])
def test_heads_have_hidden_layers_of_their_own(core: str, width: int, shared: bool) -> None:
    policy = policy_of(head_hidden=(6, 4), core=core, core_size=7, shared=shared)
    for layers, head in ((policy.head_layers, policy.policy_head), (policy.critic_head_layers, policy.value_head)):
        assert [layer.in_features for layer in layers[::2]] == [width, 6]
        assert head.in_features == 4
    assert not {*policy.parameter_groups()["policy"]} & {f"critic_head_layers.{k}.weight" for k in (0, 2)}
    assert {*policy.parameter_groups()["value"]} >= {f"critic_head_layers.{k}.weight" for k in (0, 2)}


class Residual(nn.Module):
    """Head that returns its inputs and their squares after a linear layer."""

    def __init__(self, inputs: int, config: PolicyConfig) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, inputs)
        self.output_size = 2 * inputs

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([inputs, self.layer(inputs).square()], 1)


@pytest.mark.parametrize(("core", "width"), [("none", 5), ("gru", 7)])
@pytest.mark.parametrize("shared", [False, True])
def test_a_registered_head_replaces_the_hidden_layers(
    monkeypatch: pytest.MonkeyPatch, core: str, width: int, shared: bool
) -> None:
    monkeypatch.setitem(registry._HEADS, "residual", Residual)
    global_state = torch.get_rng_state()
    policy = policy_of(head="residual", core=core, core_size=7, shared=shared)
    assert torch.equal(torch.get_rng_state(), global_state)
    assert policy.policy_head.in_features == policy.value_head.in_features == 2 * width
    assert {*policy.parameter_groups()["policy"]} >= {"head_layers.layer.weight", "head_layers.layer.bias"}
    assert {*policy.parameter_groups()["value"]} >= {"critic_head_layers.layer.weight", "critic_head_layers.layer.bias"}
    assert not torch.equal(policy.head_layers.layer.weight, policy.critic_head_layers.layer.weight)
    same = policy_of(head="residual", core=core, core_size=7, shared=shared)
    assert all(torch.equal(*pair) for pair in zip(policy.parameters(), same.parameters(), strict=True))
    state, resets = torch.zeros(7, policy.state_size, dtype=torch.float64), torch.zeros(1, 7, dtype=torch.bool)
    memory = () if core == "none" else (state,)
    heads, values = policy(observations(), None, *memory, *([] if core == "none" else [resets]))
    assert torch.allclose(heads, policy.act(observations(), None, *memory)[0], rtol=0, atol=1e-14)
    if core == "none":
        hidden = policy.trunk(observations())
        features = torch.cat([hidden, policy.head_layers.layer(hidden).square()], 1)
        assert torch.equal(heads[:, :HEAD], policy.policy_head(features))
        assert torch.equal(values, policy.value(observations()))


def test_with_a_registered_head_there_may_be_no_hidden_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._HEADS, "residual", Residual)
    assert policy_of(head="residual", hidden=()).policy_head.in_features == 2 * OBSERVATION


@pytest.mark.parametrize("core", ["lstm", "gru", "mingru"])
def test_memory_may_come_first(core: str) -> None:
    """The observation is the input of the memory: there are no hidden layers before it."""
    policy = policy_of(hidden=(), head_hidden=(6,), core=core, core_size=7)
    assert not [*policy.trunk.parameters()]
    state, resets = torch.zeros(7, policy.state_size, dtype=torch.float64), torch.zeros(1, 7, dtype=torch.bool)
    heads, values = policy(observations(), None, state, resets)
    acted_heads, acted_values, _ = policy.act(observations(), None, state)
    assert torch.allclose(heads, acted_heads, rtol=0, atol=1e-14)
    assert torch.allclose(values, acted_values, rtol=0, atol=1e-14)


def test_widths_of_the_policy_for_the_critic_change_nothing() -> None:
    same, default = policy_of(value_hidden=(8, 5)), policy_of()
    for one, other in zip(same.parameters(), default.parameters(), strict=True):
        assert torch.equal(one, other)


def test_encoder_of_images_has_no_hidden_layers_for_the_critic() -> None:
    config = PolicyConfig(value_hidden=(8,))
    with pytest.raises(
        ValueError, match=r"^policy\.value_hidden is \[8\]: encoder 'nature' has no hidden layers"
    ) as caught:
        Policy(0, Categorical(HEAD), config, torch.Generator().manual_seed(1), torch.float32, images=((3, 64, 64),))
    assert "\n" not in str(caught.value)


def test_orthogonal_gains() -> None:
    """The rows (or columns) of the weights are orthogonal, and their length is the gain."""
    policy = policy_of(log_std=-0.5)
    gains = {
        policy.trunk[0]: math.sqrt(2),
        policy.trunk[2]: math.sqrt(2),
        policy.policy_head: 0.01,
        policy.value_head: 1.0,
    }
    for layer, gain in gains.items():
        weight = layer.weight.detach()
        rows = weight if weight.shape[0] <= weight.shape[1] else weight.T
        expected = gain**2 * torch.eye(len(rows), dtype=torch.float64)
        assert torch.allclose(rows @ rows.T, expected, rtol=0, atol=1e-12)
        assert not layer.bias.any()
    assert policy.log_std is not None
    assert policy.log_std.tolist() == [-0.5] * HEAD


def test_without_orthogonal_weights_are_uniform_in_pytorchs_bounds() -> None:
    policy = policy_of(orthogonal=False, hidden=(200, 100))
    weight, bound = policy.trunk[2].weight, 1 / math.sqrt(200)
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert policy.trunk[2].bias.any()


def test_initial_weights_follow_from_the_seed() -> None:
    first, same, other = (torch.cat([p.flatten() for p in policy_of(seed=seed).parameters()]) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_trunks_have_different_initial_weights() -> None:
    policy = policy_of()
    assert policy.critic_trunk is not None
    assert not torch.equal(policy.trunk[0].weight, policy.critic_trunk[0].weight)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"hidden": ()}, "policy.hidden is"),
        ({"hidden": (4, 0)}, "policy.hidden is"),
        ({"value_hidden": ()}, "policy.value_hidden is"),
        ({"head_hidden": (8, 0)}, r"policy.head_hidden is \[8, 0\]: each width must be from 1 to 16,384"),
        ({"value_hidden": (8,), "shared": True}, "policy.value_hidden is .8.: with policy.shared, "),
        ({"log_std": 9.0}, "policy.log_std is 9.0"),
    ],
)
def test_invalid_settings_raise_a_message_of_one_line(settings: dict[str, object], line: str) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        PolicyConfig(**settings)
    assert "\n" not in str(caught.value)
