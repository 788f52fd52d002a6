"""Curiosity in an update: gradients, learning rate, warm-up, and independence of the policy."""

import dataclasses

import pytest
import torch
from tests.watched import CONTINUOUS, DISCRETE, Watch, agent_of, rollouts_of

from lockstep.algorithm.agent import Agent
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces
from lockstep.ppo.settings import PPOConfig

SMALL = {"hidden": (8,), "feature_size": 4, "neighbors": 3}
HEADS = {"combine": "two-heads", "gamma": 0.9}
CONFIG = PPOConfig(epochs=2, minibatches=2, learning_rate=0.01)


def curious(kind: str, spaces: Spaces = DISCRETE, **settings: object) -> Agent:
    return agent_of(spaces, curiosity=CuriosityConfig(kind, **(SMALL | settings)))  # type: ignore[arg-type]


def weights_after(agent: Agent, config: PPOConfig = CONFIG) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Update an agent on the rollouts of a policy without curiosity; return its state and the metrics."""
    metrics = Watch(agent, config)(rollouts_of(agent_of(agent.spaces)))
    return agent.state(), metrics


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("kind", ["icm", "rnd"])
def test_curiosity_with_weight_0_does_not_change_the_policy(kind: str, separate: bool) -> None:
    """The clipped gradient norm does not include the gradients of the curiosity method."""
    config = dataclasses.replace(CONFIG, value_learning_rate=0.02 if separate else None, max_grad_norm=0.01)
    expected, plain = weights_after(agent_of(), config)
    found, metrics = weights_after(curious(kind, weight=0.0), config)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    assert metrics["grad_norm"] == plain["grad_norm"]


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("kind", ["icm", "rnd"])
def test_gradient_equals_that_of_the_curiosity_loss(kind: str, spaces: Spaces) -> None:
    agent = curious(kind, spaces)
    rollouts = rollouts_of(agent)
    watch = Watch(agent, PPOConfig(epochs=1, minibatches=1, max_grad_norm=None))
    method = agent.curiosity
    assert method is not None
    method.observe(rollouts, lambda rows: rows.sum(0))
    fresh = curious(kind, spaces)
    watch(rollouts)
    columns = torch.cat([method.columns(method.transitions(rollout)) for rollout in rollouts])
    valid = torch.cat([rollout.valid.flatten() for rollout in rollouts])
    assert fresh.curiosity is not None
    losses = fresh.curiosity.loss(columns[valid], None).mean(0)
    loss = (losses * torch.tensor(method.weights, dtype=losses.dtype)).sum()
    trained = list(fresh.curiosity.trained_parameters().values())
    expected = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, trained)])
    found = watch.gradients[0][agent.flat.slices["curiosity"]]
    assert expected.abs().max() > 1e-4
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)


def test_share_of_each_minibatch_trains_the_predictor() -> None:
    full_watch, half_watch = (
        Watch(curious("rnd", share=share), PPOConfig(epochs=1, minibatches=1)) for share in (1.0, 0.5)
    )
    rollouts = rollouts_of(agent_of())
    full_metrics, half_metrics = full_watch(rollouts), half_watch(rollouts)
    curiosity_slice = full_watch.agent.flat.slices["curiosity"]
    assert torch.equal(
        full_watch.gradients[0][: curiosity_slice.start], half_watch.gradients[0][: curiosity_slice.start]
    )
    assert not torch.equal(full_watch.gradients[0][curiosity_slice], half_watch.gradients[0][curiosity_slice])
    assert half_metrics["rnd_loss"] == pytest.approx(full_metrics["rnd_loss"], rel=0.5)  # an estimate of the same mean


def test_curiosity_has_a_separate_learning_rate() -> None:
    still, _ = weights_after(curious("rnd", learning_rate=0.0))
    moved, _ = weights_after(curious("rnd"))
    first = curious("rnd").state()
    for name in (name for name in first if name.startswith("curiosity.predictor")):
        assert torch.equal(still[name], first[name])
        assert not torch.equal(moved[name], first[name])


def test_warmup_updates_only_running_statistics() -> None:
    agent = curious("rnd", warmup=2)
    watch, before = Watch(agent, CONFIG), agent.flat.buffer.clone()
    assert watch(rollouts_of(agent), 1) == watch(rollouts_of(agent), 2) == {"warmup": 1.0}
    assert torch.equal(agent.flat.buffer, before)
    assert agent.curiosity is not None
    assert agent.curiosity.statistics["features"].count.item() == 2 * sum(r.valid.sum() for r in rollouts_of(agent))
    assert agent.curiosity.statistics["returns"].count.item() == 0
    assert "policy_loss" in watch(rollouts_of(agent), 3)


def test_two_value_heads_fit_extrinsic_and_intrinsic_returns() -> None:
    agent = curious("rnd", **HEADS)
    watch = Watch(agent, PPOConfig(epochs=30, minibatches=1, learning_rate=0.02))
    rollouts = rollouts_of(agent)
    before = watch(rollouts)["value_loss"]
    _, _, first = agent.evaluate(rollouts[0])
    metrics = watch(rollouts)
    assert metrics["value_loss"] < before
    assert first is not None
    assert first.shape == rollouts[0].values.shape
    assert {"intrinsic_explained_variance", "intrinsic_reward_mean", "intrinsic_return"} <= metrics.keys()


def test_weights_of_extrinsic_and_intrinsic_rewards() -> None:
    """With an extrinsic weight of 0, the rewards of the environment have no effect on the policy."""
    rollouts, other = rollouts_of(agent_of()), rollouts_of(agent_of())
    for rollout in other:
        rollout.rewards.mul_(-3)
    for settings in ({}, HEADS):
        agents = [curious("rnd", weight="linear(2, 1)", extrinsic_weight=0.0, **settings) for _ in range(2)]
        for agent, agent_rollouts in zip(agents, (rollouts, other), strict=True):
            Watch(agent, CONFIG)(agent_rollouts)
        if settings:  # its head still learns what the environment pays
            policy = agents[0].flat.slices["policy"]
            assert torch.allclose(agents[0].flat.buffer[policy], agents[1].flat.buffer[policy], atol=0.02)
        else:
            assert torch.equal(agents[0].flat.buffer, agents[1].flat.buffer)
