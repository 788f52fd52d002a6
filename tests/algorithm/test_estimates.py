"""Advantages and value targets of whole rollouts, against the sums in the papers' definitions."""

import math
from types import SimpleNamespace

import pytest
import torch
from tests.watched import agent_of, rollouts_of
from torch import Tensor

from lockstep.algorithm.agent import RolloutEvaluation
from lockstep.algorithm.batch import RowLayout
from lockstep.algorithm.estimates import Estimator
from lockstep.curiosity.intrinsic import Bonus
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.ppo.settings import PPOConfig
from lockstep.rollout import Rollout

GAMMA, LAMBDA = 0.9, 0.8
CONFIG = PPOConfig(gamma=GAMMA, gae_lambda=LAMBDA)


def rollout_of() -> Rollout:
    """Return 12 steps of 2 environments, with terminated and truncated episodes and reset rows."""
    return rollouts_of(agent_of())[1]


def agent_with(rollout: Rollout, **settings: object) -> SimpleNamespace:
    """Return the part of an agent that the estimator reads. Its evaluation of the rollout is that of other weights."""
    steps, count = rollout.rewards.shape
    generator = torch.Generator().manual_seed(5)
    evaluation = RolloutEvaluation(
        values=torch.randn(steps + 1, count, generator=generator, dtype=torch.float64),
        log_probs=rollout.log_probs + 0.5 * torch.randn(steps, count, generator=generator, dtype=torch.float64),
        intrinsic_values=None,
    )
    if settings.get("two_heads"):
        intrinsic_values = torch.randn(steps + 1, count, generator=generator, dtype=torch.float64)
        evaluation = evaluation._replace(intrinsic_values=intrinsic_values)
    config = settings.get("curiosity")
    agent = SimpleNamespace(
        curiosity=config and SimpleNamespace(config=config),
        layout=RowLayout(3, 1, 0, bool(settings.get("two_heads"))),
        return_statistics=settings.get("return_statistics"),
        dtype=torch.float64,
        evaluation=evaluation,
    )
    agent.evaluate = lambda rollout: agent.evaluation
    return agent


def direct_gae(rollout: Rollout, rewards: Tensor, values: Tensor) -> Tensor:
    """Equation 16 of Schulman et al. 2016 as a sum: A_t = Σ (γλ)^l δ_{t+l}, up to the end of the episode."""
    steps, count = rewards.shape
    result = torch.zeros(steps, count, dtype=torch.float64)
    for env in range(count):
        for t in range(steps):
            for k in range(t, steps):
                if not rollout.valid[t, env]:
                    break
                bootstrap = 0.0 if rollout.terminated[k, env] else GAMMA * values[k + 1, env]
                result[t, env] += (GAMMA * LAMBDA) ** (k - t) * (rewards[k, env] + bootstrap - values[k, env])
                if rollout.terminated[k, env] or rollout.truncated[k, env]:
                    break
    return result


def direct_vtrace_targets(rollout: Rollout, values: Tensor, ratios: Tensor) -> Tensor:
    """Equation 1 of Espeholt et al. 2018 as a sum: v_s = V_s + Σ γ^(t-s) (c_s … c_{t-1}) δ_t, up to the end of the episode."""
    steps, count = rollout.rewards.shape
    result = torch.zeros(steps, count, dtype=torch.float64)
    for env in range(count):
        for s in range(steps):
            if not rollout.valid[s, env]:
                continue
            result[s, env], traces = values[s, env], 1.0
            for t in range(s, steps):
                bootstrap = 0.0 if rollout.terminated[t, env] else GAMMA * values[t + 1, env]
                delta = ratios[t, env] * (rollout.rewards[t, env] + bootstrap - values[t, env])
                result[s, env] += GAMMA ** (t - s) * traces * delta
                traces *= LAMBDA * ratios[t, env]
                if rollout.terminated[t, env] or rollout.truncated[t, env]:
                    break
    return result


def bonus_of(rollout: Rollout) -> Bonus:
    rewards = torch.where(rollout.valid, torch.arange(24.0, dtype=torch.float64).view(12, 2) / 10, 0)
    return Bonus(rewards, torch.zeros(24, 0), torch.zeros(5, dtype=torch.float64))


def close(found: Tensor, expected: Tensor, valid: Tensor) -> None:
    torch.testing.assert_close(found[valid], expected[valid], rtol=1e-12, atol=1e-12)


def test_advantages_and_targets_are_those_of_gae() -> None:
    rollout = rollout_of()
    assert int(rollout.valid.sum()) < rollout.valid.numel()
    estimates = Estimator(agent_with(rollout), CONFIG, vtrace=False)(rollout, None, 0.0)
    expected = direct_gae(rollout, rollout.rewards, rollout.values)
    close(estimates.advantages, expected, rollout.valid)
    assert estimates.advantages[~rollout.valid].tolist() == [0.0] * int((~rollout.valid).sum())
    close(estimates.targets, expected + rollout.values[:-1], rollout.valid)
    assert torch.equal(estimates.log_probs, rollout.log_probs)
    assert torch.equal(estimates.values, rollout.values[:-1])
    assert torch.equal(estimates.ratios, torch.ones_like(rollout.rewards))
    assert estimates.intrinsic == ()


def test_targets_and_old_policy_of_vtrace() -> None:
    rollout = rollout_of()
    agent = agent_with(rollout)
    estimates = Estimator(agent, CONFIG, vtrace=True)(rollout, None, 0.0)
    values, log_probs = agent.evaluation.values, agent.evaluation.log_probs
    ratios = (log_probs - rollout.log_probs).exp().clamp(max=1)
    close(estimates.targets, direct_vtrace_targets(rollout, values, ratios), rollout.valid)
    close(estimates.ratios, ratios, rollout.valid)
    assert torch.equal(estimates.log_probs, log_probs)
    assert torch.equal(estimates.values, values[:-1])


def test_vtrace_of_the_collecting_policy_is_gae() -> None:
    rollout = rollout_of()
    agent = agent_with(rollout)
    agent.evaluation = agent.evaluation._replace(log_probs=rollout.log_probs)
    estimates = Estimator(agent, CONFIG, vtrace=True)(rollout, None, 0.0)
    close(estimates.advantages, direct_gae(rollout, rollout.rewards, agent.evaluation.values), rollout.valid)


def test_clipped_rewards_are_signs() -> None:
    rollout = rollout_of()
    config = PPOConfig(gamma=GAMMA, gae_lambda=LAMBDA, clip_rewards=True)
    signs = torch.tensor([math.copysign(1, reward) if reward else 0 for reward in rollout.rewards.flatten().tolist()])
    expected = direct_gae(rollout, signs.double().view(12, 2), rollout.values)
    close(Estimator(agent_with(rollout), config, vtrace=False)(rollout, None, 0.0).advantages, expected, rollout.valid)


def test_normalized_rewards_are_divided_and_limited_to_10() -> None:
    rollout = rollout_of()
    rollout.rewards[1, 1] = 1000.0
    agent = agent_with(rollout, return_statistics=SimpleNamespace(std=torch.tensor([2.0], dtype=torch.float64)))
    rewards = rollout.rewards / 2
    rewards[1, 1] = 10
    expected = direct_gae(rollout, rewards, rollout.values)
    close(Estimator(agent, CONFIG, vtrace=False)(rollout, None, 0.0).advantages, expected, rollout.valid)


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0.5), (0.5, 0.25), (1.0, 0.0)])
def test_intrinsic_rewards_are_added_by_their_schedule(progress: float, weight: float) -> None:
    rollout = rollout_of()
    bonus = bonus_of(rollout)
    curiosity = CuriosityConfig("rnd", weight="linear(0.5, 0)", extrinsic_weight=2.0)
    estimates = Estimator(agent_with(rollout, curiosity=curiosity), CONFIG, vtrace=False)(rollout, bonus, progress)
    expected = direct_gae(rollout, 2 * rollout.rewards + weight * bonus.rewards, rollout.values)
    close(estimates.advantages, expected, rollout.valid)


def test_intrinsic_returns_of_a_second_head_continue_across_episodes() -> None:
    rollout = rollout_of()
    bonus, gamma = bonus_of(rollout), 0.7
    curiosity = CuriosityConfig("rnd", weight=0.5, combine="two-heads", gamma=gamma)
    agent = agent_with(rollout, curiosity=curiosity, two_heads=True)
    estimates = Estimator(agent, CONFIG, vtrace=False)(rollout, bonus, 0.0)
    values = agent.evaluation.intrinsic_values
    expected = torch.zeros_like(rollout.rewards)
    for env in range(2):
        # without its reset rows, the rollout is one sequence that never ends
        (rows,) = rollout.valid[:, env].nonzero(as_tuple=True)
        rewards, sequence = bonus.rewards[rows, env], torch.cat([values[rows, env], values[-1:, env]])
        deltas = rewards + gamma * sequence[1:] - sequence[:-1]
        for t, row in enumerate(rows.tolist()):
            expected[row, env] = sum((gamma * LAMBDA) ** k * delta for k, delta in enumerate(deltas[t:].tolist()))
    targets, old_values = estimates.intrinsic
    close(targets, expected + values[:-1], rollout.valid)
    close(old_values, values[:-1], rollout.valid)
    extrinsic = direct_gae(rollout, rollout.rewards, rollout.values)
    close(estimates.advantages, extrinsic + 0.5 * expected, rollout.valid)
