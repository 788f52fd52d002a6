"""The update: its gradients against autograd on the whole batch, and every decision it takes."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.agent import Agent
from lockstep.envs.spaces import Spaces
from lockstep.group.solo import Solo
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.advantages import advantages
from lockstep.ppo.settings import PPOConfig
from lockstep.randomness import stream
from lockstep.rollout import Rollout
from lockstep.update import NonFinite, Update

SHARDS, STEPS, COUNT, SIZE = 2, 12, 2, 3
ROWS = STEPS * COUNT
NOTHING = np.zeros(0, dtype=np.float32)
DISCRETE = Spaces(SIZE, 4, 0, NOTHING, NOTHING)
CONTINUOUS = Spaces(SIZE, None, 2, np.float32([-1, -1]), np.float32([1, 1]))
SEED, ITERATION = 1, 3


class Watched(Solo):
    """Remembers what was reduced."""

    def __init__(self) -> None:
        self.totals: list[tuple[str, Tensor]] = []

    def reduce(self, parts: Tensor, phase: str) -> Tensor:
        total = super().reduce(parts, phase)
        self.totals.append((phase, total.clone()))
        return total


class Watch:
    """An update whose every step of Adam is noted: gradient, rates, and the weights after it."""

    def __init__(self, agent: Agent, config: PPOConfig) -> None:
        self.agent, self.group = agent, Watched()
        self.update = Update(agent, config, self.group, range(SHARDS), SEED)
        self.gradients: list[Tensor] = []
        self.rates: list[Mapping[str, float]] = []
        self.weights: list[Tensor] = []
        self._step = self.update.adam.step
        self.update.adam.step = self._note

    def _note(self, gradient: Tensor, rates: Mapping[str, float]) -> None:
        self.gradients.append(gradient.clone())
        self.rates.append(dict(rates))
        self._step(gradient, rates)
        self.weights.append(self.agent.flat.buffer.clone())

    def __call__(
        self, rollouts: list[Rollout] | None = None, iteration: int = ITERATION, progress: float = 0.0
    ) -> dict[str, float]:
        """Trains on `rollouts`; None: on what the agent would collect now."""
        return self.update(rollouts_of(self.agent) if rollouts is None else rollouts, iteration, progress)

    def divergences(self) -> list[float]:
        """KL of every minibatch, from the totals that travelled: weights, then policy_loss, value_loss, entropy, KL, …."""
        (table,) = [total[4:].view(-1, 3) for phase, total in self.group.totals if phase == "advantages"]
        found = [total for phase, total in self.group.totals if phase == "gradients"]
        return [(total[-2] / count).item() for total, (count, _, _) in zip(found, table, strict=False)]


def agent_of(spaces: Spaces = DISCRETE, shared: bool = False, normalize: bool = False, seed: int = 1) -> Agent:
    config = PolicyConfig(hidden=(8,), shared=shared, normalize_observations=normalize)
    return Agent(spaces, config, normalize, seed, torch.float64)


def watch_of(**settings: object) -> Watch:
    return Watch(agent_of(), PPOConfig(**settings))


def drawn(name: str, *shape: int) -> Tensor:
    return torch.from_numpy(stream(SEED, name).standard_normal(shape))


def rollouts_of(agent: Agent) -> list[Rollout]:
    """What shards might have collected with this agent: random observations and rewards, both kinds of ends, reset rows."""
    rollouts = []
    moments = 0 if agent.return_moments is None else 1 + 2 * SIZE + 3
    for shard in range(SHARDS):
        action_size = None if agent.spaces.discrete_actions else agent.spaces.action_size
        rollout = Rollout.empty(STEPS, COUNT, SIZE, action_size, moments, torch.float64)
        rollout.observations[:] = drawn(f"observations {shard}", STEPS + 1, COUNT, SIZE)
        rollout.rewards[:] = drawn(f"rewards {shard}", STEPS, COUNT)
        rollout.terminated[3, 0] = rollout.truncated[6, 1] = rollout.terminated[STEPS - 1, 1] = True
        if shard == 1:
            rollout.truncated[8, 0] = True
        ended = rollout.terminated | rollout.truncated
        rollout.valid[1:] = ~ended[:-1]
        rollout.valid[0, shard] = False  # its episode ended in the rollout before
        rollout.rewards[~rollout.valid] = 0
        noise = agent.distribution.noise(stream(SEED, "noise", shard), STEPS, COUNT)
        for action, observations, now in zip(
            rollout.actions, rollout.observations, torch.from_numpy(noise), strict=False
        ):
            action.copy_(agent.act(observations, now))
        values, log_probs = agent.judge(rollout.observations, rollout.actions)
        rollout.values.copy_(values)
        rollout.log_probs.copy_(log_probs)
        if agent.return_moments is not None and agent.observation_moments is not None:
            valid = rollout.valid.flatten()
            seen = agent.observation_moments.sums(rollout.observations[:-1].flatten(0, 1), valid)
            rollout.moments.copy_(torch.cat([seen, agent.return_moments.sums(rollout.rewards.view(-1, 1), valid)]))
        rollouts.append(rollout)
    return rollouts


def move(agent: Agent, distance: float = 0.1) -> None:
    """Away from the weights that collected, so that ratios are not 1 and some of them are clipped."""
    agent.flat.buffer += distance * drawn("move", len(agent.flat.buffer))


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
    """The rows of all shards together."""
    rows = [rows_of(rollout, config) for rollout in rollouts]
    return {name: torch.cat([own[name] for own in rows]) for name in rows[0]}


def expected_gradient(agent: Agent, batch: dict[str, Tensor], config: PPOConfig) -> Tensor:
    """Autograd on the mean loss of the valid rows, written with torch.distributions."""
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
    weights = [weight for part in agent.policy.parts().values() for weight in part]
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, weights)])


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"normalize_advantages": False}, {"value_clip": 0.05, "entropy": 0.02, "value_coefficient": 2, "clip": 0.05}],
    ids=["plain", "raw", "everything"],
)
def test_the_gradient_is_that_of_the_whole_batch(spaces: Spaces, shared: bool, settings: dict[str, float]) -> None:
    config = PPOConfig(epochs=1, minibatches=1, max_grad_norm=None, **settings)
    agent = agent_of(spaces, shared)
    rollouts = rollouts_of(agent)
    move(agent)
    expected = expected_gradient(agent, batch_of(rollouts, config), config)
    watch = Watch(agent, config)
    watch(rollouts)
    assert expected.abs().max() > 0.01
    assert torch.allclose(watch.gradients[0], expected, rtol=0, atol=1e-12)


def test_a_minibatch_is_the_union_of_the_shards_shares() -> None:
    config = PPOConfig(epochs=2, minibatches=3, max_grad_norm=None)
    agent = agent_of()
    rollouts = rollouts_of(agent)
    move(agent)
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


def test_one_step_is_one_reduction() -> None:
    watch = Watch(agent_of(normalize=True), PPOConfig(epochs=2, minibatches=3))
    watch()
    assert [phase for phase, _ in watch.group.totals] == ["moments", "advantages", *["gradients"] * 6]


def test_reset_rows_count_nowhere() -> None:
    """Whatever the policy did on them, and whatever reward they might carry."""
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


def test_the_gradient_is_clipped_to_its_norm() -> None:
    free, clipped = (watch_of(epochs=1, minibatches=1, max_grad_norm=limit) for limit in (None, 0.01))
    metrics = [watch() for watch in (free, clipped)]
    assert metrics[0]["grad_norm"] == metrics[1]["grad_norm"] > 0.01  # what is reported is the norm before
    assert torch.linalg.vector_norm(clipped.gradients[0]).item() == pytest.approx(0.01, rel=1e-3)
    direction = [watch.gradients[0] / torch.linalg.vector_norm(watch.gradients[0]) for watch in (free, clipped)]
    assert torch.allclose(*direction, rtol=0, atol=1e-12)


FAST = {"learning_rate": 0.02, "epochs": 4, "minibatches": 3}


@pytest.mark.parametrize("stop_after", [1, 5, 8])
def test_the_kl_stop_stops_at_the_step_whose_kl_is_too_large(stop_after: int) -> None:
    free = watch_of(**FAST)
    assert free()["kl_stopped"] == 0
    seen = free.divergences()
    limit = (max(seen[:stop_after]) + seen[stop_after]) / 2
    assert max(seen[:stop_after]) < limit < seen[stop_after], "these numbers do not test a stop here"
    stopped = watch_of(kl_stop=limit, **FAST)
    metrics = stopped()
    assert metrics["kl_stopped"] == 1
    assert len(stopped.weights) == stop_after
    assert torch.equal(stopped.agent.flat.buffer, free.weights[stop_after - 1])


def test_after_a_kl_stop_the_critic_with_epochs_of_its_own_goes_on() -> None:
    watch = watch_of(learning_rate=0.02, policy_epochs=3, value_epochs=4, minibatches=2, kl_stop=1e-9)
    watch()
    policy, value = (watch.agent.flat.slices[name] for name in ("policy", "value"))
    assert len(watch.group.totals) == 1 + 4 * 2  # every step is still one reduction
    assert watch.update.adam.steps == {"policy": 1, "value": 4 * 2}
    assert all(torch.equal(weights[policy], watch.weights[0][policy]) for weights in watch.weights)
    assert not torch.equal(watch.weights[-1][value], watch.weights[0][value])


def test_after_a_kl_stop_nothing_is_left_to_do_once_the_critic_is_done() -> None:
    watch = watch_of(learning_rate=0.02, policy_epochs=4, value_epochs=2, minibatches=2, kl_stop=1e-9)
    assert watch()["update_steps"] == 2 * 2
    assert watch.update.adam.steps == {"policy": 1, "value": 2 * 2}


@pytest.mark.parametrize(("policy_epochs", "value_epochs"), [(1, 3), (3, 1)])
def test_a_finished_part_is_left_alone(policy_epochs: int, value_epochs: int) -> None:
    minibatches = 2
    watch = watch_of(policy_epochs=policy_epochs, value_epochs=value_epochs, minibatches=minibatches)
    watch()
    assert len(watch.weights) == 3 * minibatches
    assert watch.update.adam.steps == {"policy": policy_epochs * minibatches, "value": value_epochs * minibatches}
    for (_, part), epochs in zip(watch.agent.flat.slices.items(), (policy_epochs, value_epochs), strict=True):
        for step in range(1, 3 * minibatches):
            same = torch.equal(watch.weights[step][part], watch.weights[step - 1][part])
            assert same is (step >= epochs * minibatches)
            assert (not watch.gradients[step][part].any()) is (step >= epochs * minibatches)


@pytest.mark.parametrize("rate", [5e-3, 0.0])
def test_the_critic_has_its_own_learning_rate(rate: float) -> None:
    watch = watch_of(learning_rate="linear(1e-3, 0)", value_learning_rate=rate)
    watch(progress=0.75)
    assert watch.rates[0] == pytest.approx({"policy": 2.5e-4, "value": rate})


def test_schedules_follow_progress() -> None:
    watch = watch_of(learning_rate="linear(1e-3, 0)", clip="linear(0.2, 0.1)", entropy="linear(0.01, 0)")
    found = [watch(progress=progress) for progress in (0.0, 0.5)]
    for metrics, expected in zip(found, ((1e-3, 0.2, 0.01), (5e-4, 0.15, 0.005)), strict=True):
        assert [metrics[name] for name in ("learning_rate", "clip", "entropy_coefficient")] == pytest.approx(expected)
    assert watch.rates[-1] == {"all": pytest.approx(5e-4)}


@pytest.mark.parametrize(("target", "factor"), [(1e-6, 2.0), (1e3, 0.5), (None, 1.0)])
def test_the_penalty_adapts(target: float | None, factor: float) -> None:
    settings = {"surrogate": "kl", "kl_coefficient": 3.0, **FAST}
    # None: just what this update's KL is, so between the two limits
    watch = watch_of(kl_target=target or watch_of(**settings)()["last_kl"], **settings)
    watch()
    assert watch.update.kl_coefficient == 3.0 * factor


def test_the_penalty_holds_the_policy_back() -> None:
    weak, strong = (watch_of(surrogate="kl", kl_coefficient=beta, **FAST) for beta in (1e-6, 100.0))
    assert strong()["approx_kl"] < 0.5 * weak()["approx_kl"]


@pytest.mark.parametrize(("target", "factor"), [(1e-6, 1 / 1.5), (1e3, 1.5), (None, 1.0)])
def test_the_learning_rate_adapts(target: float | None, factor: float) -> None:
    watch = watch_of(learning_rate_kl=target or watch_of(**FAST)()["approx_kl"], **FAST)
    first, second = watch(), watch()
    assert first["learning_rate"] == FAST["learning_rate"]
    assert second["learning_rate"] == pytest.approx(FAST["learning_rate"] * factor)
    assert watch.rates[-1] == {"all": second["learning_rate"]}


def test_the_adaptive_factor_has_bounds() -> None:
    for target, bound in ((1e-12, 1e-3), (1e12, 1e2)):
        update = watch_of(learning_rate_kl=target).update
        for _ in range(60):
            update._adapt(1.0)
        assert update.rate_factor == bound


@pytest.mark.parametrize("what", ["rewards", "values", "log_probs"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_leaves_the_weights_of_the_last_good_step(what: str, value: float) -> None:
    agent = agent_of()
    rollouts = rollouts_of(agent)
    last = STEPS - 1  # the last row of an environment that goes on
    # a log-probability of +inf would only give a ratio of 0, which is finite
    rollouts[1].tensors()[what][last, 0] = -value if what == "log_probs" else value
    watch = Watch(agent, PPOConfig(epochs=1, minibatches=4, normalize_advantages=False))
    before = agent.flat.buffer.clone()
    with pytest.raises(NonFinite) as caught:
        watch(rollouts)
    assert "\n" not in str(caught.value)
    assert torch.equal(agent.flat.buffer, watch.weights[-1] if watch.weights else before)
    assert agent.flat.buffer.isfinite().all()
    assert len(watch.weights) < 4


def test_return_moments_scale_this_iteration_and_observation_moments_the_next() -> None:
    agent = agent_of(normalize=True)
    rollouts = rollouts_of(agent)
    watch = Watch(agent, PPOConfig(epochs=1, minibatches=1))
    watch(rollouts)
    assert agent.return_moments is not None
    assert agent.observation_moments is not None
    count = sum(int(rollout.valid.sum()) for rollout in rollouts)
    assert agent.return_moments.count.item() == agent.observation_moments.count.item() == count
    valid = torch.cat([rollout.observations[:-1][rollout.valid] for rollout in rollouts])
    assert torch.allclose(agent.observation_moments.mean, valid.mean(0), rtol=0, atol=1e-14)
    # the gradient is that of rewards divided by the deviation, on observations as they were (no moments yet)
    mirror = agent_of(normalize=True)
    for rollout in rollouts:
        rollout.rewards /= agent.return_moments.std
    expected = expected_gradient(mirror, batch_of(rollouts, PPOConfig()), PPOConfig())
    expected *= min(1, 0.5 / torch.linalg.vector_norm(expected).item())
    assert torch.allclose(watch.gradients[0], expected, rtol=0, atol=1e-6)
    observations = torch.ones(1, SIZE, dtype=torch.float64)
    assert not torch.equal(agent.normalize(observations), observations)


def test_metrics_of_a_single_step() -> None:
    config = PPOConfig(epochs=1, minibatches=1, entropy=0.01)
    agent = agent_of()
    rollouts = rollouts_of(agent)
    move(agent)
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


@pytest.mark.parametrize("settings", [{}, {"policy_epochs": 2, "value_epochs": 3}], ids=["together", "apart"])
def test_state_goes_on_exactly(settings: dict[str, int]) -> None:
    config = PPOConfig(learning_rate=0.01, learning_rate_kl=1e-6, **settings)
    through = Watch(agent_of(), config)
    through()
    resumed = Watch(agent_of(seed=2), config)
    resumed.agent.load({name: tensor.clone() for name, tensor in through.agent.state().items()})
    resumed.update.load({name: tensor.clone() for name, tensor in through.update.state().items()})
    for watch in (through, resumed):
        watch(iteration=ITERATION + 1)
    assert through.agent.digest() == resumed.agent.digest()
    assert resumed.update.rate_factor == through.update.rate_factor < 1
