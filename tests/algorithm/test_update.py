"""Update: gradients compared with autograd on the whole batch, metrics computed by hand, and state."""

import math

import pytest
import torch
from tests.watched import (
    CONTINUOUS,
    DISCRETE,
    ITERATION,
    ROWS,
    SEED,
    SHARDS,
    SIZE,
    STEPS,
    RecordingGroup,
    Watch,
    agent_of,
    perturb,
    rollouts_of,
    watch_of,
)
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.non_finite import NonFinite
from lockstep.algorithm.update import Update
from lockstep.envs.spaces import Spaces
from lockstep.ppo.advantages import advantages, vtrace
from lockstep.ppo.settings import PPOConfig
from lockstep.randomness import stream
from lockstep.rollout import Rollout


def rows_of(rollout: Rollout, config: PPOConfig) -> dict[str, Tensor]:
    flags = (rollout.terminated, rollout.truncated, rollout.valid)
    advantage = advantages(rollout.rewards, rollout.values, *flags, config.gamma, config.gae_lambda).flatten()
    return {
        "observations": rollout.observations[:-1].flatten(0, 1),
        "actions": rollout.actions.flatten(0, 1),
        "log_probs": rollout.log_probs.flatten(),
        "values": rollout.values[:-1].flatten(),
        "valid": rollout.valid.flatten(),
        "advantages": advantage,
        "targets": advantage + rollout.values[:-1].flatten(),
    }


def batch_of(rollouts: list[Rollout], config: PPOConfig) -> dict[str, Tensor]:
    """Concatenate the rows of all shards."""
    rows = [rows_of(rollout, config) for rollout in rollouts]
    return {name: torch.cat([columns[name] for columns in rows]) for name in rows[0]}


def expected_gradient(agent: Agent, batch: dict[str, Tensor], config: PPOConfig) -> Tensor:
    """Compute the gradient of the mean loss of valid rows with autograd and torch.distributions."""
    rows = {name: tensor[batch["valid"]] for name, tensor in batch.items()}
    parameters, values = agent.policy(rows["observations"])
    if agent.spaces.discrete_actions:
        distribution: torch.distributions.Distribution = torch.distributions.Categorical(logits=parameters)
    else:
        mean, log_std = parameters.chunk(2, -1)
        distribution = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    advantage = rows["advantages"]
    if config.normalize_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    ratio = (distribution.log_prob(rows["actions"]) - rows["log_probs"]).exp()
    clip = float(config.clip)
    policy_loss = -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
    value_loss = 0.5 * (values - rows["targets"]).square()
    if config.value_clip is not None:
        near = rows["values"] + (values - rows["values"]).clamp(-config.value_clip, config.value_clip)
        value_loss = torch.max(value_loss, 0.5 * (near - rows["targets"]).square())
    bonus = float(config.entropy) * distribution.entropy().mean()
    loss = policy_loss + config.value_coefficient * value_loss.mean() - bonus
    weights = [weight for part in agent.policy.parameter_groups().values() for weight in part.values()]
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, weights)])


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"normalize_advantages": False}, {"value_clip": 0.05, "entropy": 0.02, "value_coefficient": 2, "clip": 0.05}],
    ids=["defaults", "raw advantages", "all options"],
)
def test_gradient_equals_that_of_the_whole_batch(spaces: Spaces, shared: bool, settings: dict[str, float]) -> None:
    config = PPOConfig(epochs=1, minibatches=1, max_grad_norm=None, **settings)
    agent = agent_of(spaces, shared)
    rollouts = rollouts_of(agent)
    perturb(agent)
    expected = expected_gradient(agent, batch_of(rollouts, config), config)
    watch = Watch(agent, config)
    watch(rollouts)
    assert expected.abs().max() > 0.01
    assert torch.allclose(watch.gradients[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_vtrace_uses_the_policy_and_values_of_the_trainer(spaces: Spaces) -> None:
    """Ratios, clipped values and advantages use the policy and values of the weights before the update."""
    config = PPOConfig(epochs=1, minibatches=1, max_grad_norm=None, value_clip=0.05)
    agent = agent_of(spaces)
    rollouts = rollouts_of(agent)
    perturb(agent)
    batch, ratios = batch_of(rollouts, config), []
    for name in ("log_probs", "values", "advantages", "targets"):
        batch[name] = batch[name].clone()
    for shard, rollout in enumerate(rollouts):
        shard_rows = slice(shard * ROWS, (shard + 1) * ROWS)
        values, log_probs = (x.clone() for x in agent.evaluate(rollout)[:2])
        flags = (rollout.terminated, rollout.truncated, rollout.valid)
        ratio = log_probs - rollout.log_probs
        corrected = vtrace(rollout.rewards, values, ratio, *flags, config.gamma, config.gae_lambda)
        for name, found in zip(
            ("advantages", "targets", "log_probs", "values"), (*corrected, log_probs, values[:-1]), strict=True
        ):
            batch[name][shard_rows] = found.flatten()
        ratios.append(ratio.exp().clamp_max(1)[rollout.valid])
    expected = expected_gradient(agent, batch, config)
    watch = Watch(agent, config, vtrace=True)
    metrics = watch(rollouts)
    assert torch.allclose(watch.gradients[0], expected, rtol=0, atol=1e-12)
    assert metrics["vtrace_ratio"] == pytest.approx(torch.cat(ratios).mean().item(), rel=1e-12)
    assert metrics["vtrace_ratio"] < 0.99
    assert metrics["approx_kl"] < 1e-24, (
        "of the new policy from the trainer's own, which are the same in the first step"
    )


def test_vtrace_on_policy_with_lambda_1_changes_nothing() -> None:
    config = PPOConfig(gae_lambda=1.0, learning_rate=0.01, epochs=4, minibatches=4, recompute_advantages=False)
    plain, corrected = Watch(agent_of(), config), Watch(agent_of(), config, vtrace=True)
    metrics = [plain(), corrected()]
    assert torch.allclose(plain.agent.flat.buffer, corrected.agent.flat.buffer, rtol=0, atol=1e-10)
    assert metrics[1].pop("vtrace_ratio") == 1
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-6)


def test_minibatch_is_the_union_of_the_minibatches_of_the_shards() -> None:
    config = PPOConfig(epochs=2, minibatches=3, max_grad_norm=None, recompute_advantages=False)
    agent = agent_of()
    rollouts = rollouts_of(agent)
    perturb(agent)
    watch, mirror = Watch(agent, config), agent_of()
    mirror.flat.buffer.copy_(agent.flat.buffer)
    watch(rollouts)
    batches = [rows_of(rollout, config) for rollout in rollouts]
    permutations = [stream(SEED, "minibatches", shard, ITERATION) for shard in range(SHARDS)]
    for epoch in range(2):
        orders = [torch.from_numpy(permutation.permutation(ROWS)).chunk(3) for permutation in permutations]
        for m in range(3):
            shares = [(rows, order[m]) for rows, order in zip(batches, orders, strict=True)]
            union = {name: torch.cat([rows[name][share] for rows, share in shares]) for name in batches[0]}
            step = epoch * 3 + m
            assert torch.allclose(watch.gradients[step], expected_gradient(mirror, union, config), rtol=0, atol=1e-12)
            mirror.flat.buffer.copy_(watch.weights[step])


def test_each_gradient_step_has_one_reduction() -> None:
    watch = Watch(agent_of(normalize=True), PPOConfig(epochs=2, minibatches=3, recompute_advantages=False))
    watch()
    assert [phase for phase, _ in watch.group.totals] == ["statistics", "advantages", "advantages", *["gradients"] * 6]


def test_rank_without_shards_takes_no_part_in_the_update() -> None:
    agent, group = agent_of(), RecordingGroup()
    before = agent.digest()
    assert Update(agent, PPOConfig(minibatches=4), group, (), SEED)([], ITERATION, 0.0) == {}
    assert not group.totals
    assert agent.digest() == before


@pytest.mark.gpu
@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("options", [{}, {"share_data": True, "vtrace": True}, {"fused": True}])
def test_gpu_gives_the_same_weights_up_to_rounding(spaces: Spaces, options: dict[str, bool]) -> None:
    weights = []
    for device in ("cpu", "cuda"):
        agent = agent_of(spaces, normalize=True, device=device)
        rollouts = rollouts_of(agent_of(spaces, normalize=True))
        perturb(agent)
        Watch(agent, PPOConfig(epochs=2, minibatches=2, learning_rate=0.01), **options)(rollouts)
        weights.append(agent.flat.buffer.cpu())
    assert torch.allclose(*weights, rtol=0, atol=1e-9)


def test_reset_rows_do_not_affect_the_update() -> None:
    """Actions, log-probabilities and rewards of reset rows are ignored."""
    results = []
    for spoil in (False, True):
        agent = agent_of(normalize=True)
        rollouts = rollouts_of(agent)
        if spoil:
            for rollout in rollouts:
                reset = ~rollout.valid
                rollout.actions[reset] = (rollout.actions[reset] + 1) % 4
                rollout.log_probs[reset] -= 1.0
                rollout.rewards[reset] = 1e3
        metrics = Watch(agent, PPOConfig(epochs=2, minibatches=2))(rollouts)
        results.append((agent.digest(), metrics))
    assert results[0] == results[1]


def test_gradient_norm_is_clipped() -> None:
    free, clipped = (watch_of(epochs=1, minibatches=1, max_grad_norm=limit) for limit in (None, 0.01))
    metrics = [watch() for watch in (free, clipped)]
    assert metrics[0]["grad_norm"] == metrics[1]["grad_norm"] > 0.01  # what is reported is the norm before
    assert torch.linalg.vector_norm(clipped.gradients[0]).item() == pytest.approx(0.01, rel=1e-3)
    direction = [watch.gradients[0] / torch.linalg.vector_norm(watch.gradients[0]) for watch in (free, clipped)]
    assert torch.allclose(*direction, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tensor_name", ["rewards", "values", "log_probs"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_loss_keeps_the_weights_of_the_last_finite_step(tensor_name: str, value: float) -> None:
    agent = agent_of()
    rollouts = rollouts_of(agent)
    last = STEPS - 1  # the last row of an environment that continues
    # a log-probability of +inf would only give a ratio of 0, which is finite
    rollouts[1].tensors()[tensor_name][last, 0] = -value if tensor_name == "log_probs" else value
    watch = Watch(agent, PPOConfig(epochs=1, minibatches=4, normalize_advantages=False))
    before = agent.flat.buffer.clone()
    with pytest.raises(NonFinite) as caught:
        watch(rollouts)
    assert "\n" not in str(caught.value)
    assert ("check the environment" in str(caught.value)) == (tensor_name == "rewards")
    # rewards and values are found in the advantages, before the first step
    assert (not watch.weights) == (tensor_name != "log_probs")
    assert torch.equal(agent.flat.buffer, watch.weights[-1] if watch.weights else before)
    assert agent.flat.buffer.isfinite().all()
    assert len(watch.weights) < 4


def test_return_statistics_apply_now_and_observation_statistics_in_the_next_iteration() -> None:
    agent = agent_of(normalize=True)
    rollouts = rollouts_of(agent)
    watch = Watch(agent, PPOConfig(epochs=1, minibatches=1))
    watch(rollouts)
    assert agent.return_statistics is not None
    assert agent.observation_statistics is not None
    count = sum(int(rollout.valid.sum()) for rollout in rollouts)
    assert agent.return_statistics.count.item() == agent.observation_statistics.count.item() == count
    valid = torch.cat([rollout.observations[:-1][rollout.valid] for rollout in rollouts])
    assert torch.allclose(agent.observation_statistics.mean, valid.mean(0), rtol=0, atol=1e-14)
    # the gradient is that of rewards divided by the deviation, on observations as they were (no statistics yet)
    mirror = agent_of(normalize=True)
    for rollout in rollouts:
        rollout.rewards /= agent.return_statistics.std
    expected = expected_gradient(mirror, batch_of(rollouts, PPOConfig()), PPOConfig())
    expected *= min(1, 0.5 / torch.linalg.vector_norm(expected).item())
    assert torch.allclose(watch.gradients[0], expected, rtol=0, atol=1e-6)
    observations = torch.ones(1, SIZE, dtype=torch.float64)
    assert not torch.equal(agent.normalize(observations), observations)


def test_metrics_of_a_single_step() -> None:
    config = PPOConfig(epochs=1, minibatches=1, entropy=0.01)
    agent = agent_of()
    rollouts = rollouts_of(agent)
    perturb(agent)
    batch = batch_of(rollouts, config)
    rows = {name: tensor[batch["valid"]] for name, tensor in batch.items()}
    parameters, values = agent.policy(rows["observations"])
    distribution = torch.distributions.Categorical(logits=parameters)
    log_ratio = distribution.log_prob(rows["actions"]) - rows["log_probs"]
    metrics = Watch(agent, config)(rollouts)
    value_loss = 0.5 * (values - rows["targets"]).square().mean().item()
    assert metrics["value_loss"] == pytest.approx(value_loss, rel=1e-12)
    assert metrics["entropy"] == pytest.approx(distribution.entropy().mean().item(), rel=1e-12)
    assert metrics["approx_kl"] == pytest.approx((log_ratio.expm1() - log_ratio).mean().item(), rel=1e-10)
    assert metrics["clip_frac"] == pytest.approx(((log_ratio.exp() - 1).abs() > 0.2).double().mean().item())
    assert metrics["loss"] == pytest.approx(metrics["policy_loss"] + 0.5 * value_loss - 0.01 * metrics["entropy"])
    explained = 1 - (rows["targets"] - rows["values"]).var(correction=0) / rows["targets"].var(correction=0)
    assert metrics["explained_variance"] == pytest.approx(explained.item(), rel=1e-10)
    assert metrics["update_steps"] == 1


@pytest.mark.parametrize(
    "settings", [{}, {"policy_epochs": 2, "value_epochs": 3}], ids=["same epochs", "separate epochs"]
)
def test_restored_update_continues_with_the_same_bits(settings: dict[str, int]) -> None:
    config = PPOConfig(learning_rate=0.01, learning_rate_kl=1e-6, minibatches=4, **settings)
    uninterrupted = Watch(agent_of(), config)
    uninterrupted()
    resumed = Watch(agent_of(seed=2), config)
    resumed.agent.load({name: tensor.clone() for name, tensor in uninterrupted.agent.state().items()})
    resumed.update.load({name: tensor.clone() for name, tensor in uninterrupted.update.state().items()})
    for watch in (uninterrupted, resumed):
        watch(iteration=ITERATION + 1)
    assert uninterrupted.agent.digest() == resumed.agent.digest()
    assert resumed.update.kl.rate_factor == uninterrupted.update.kl.rate_factor < 1
