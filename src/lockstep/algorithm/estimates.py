"""Advantages and value targets of a rollout, from extrinsic and intrinsic rewards."""

from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.algorithm.agent import Agent, RolloutEvaluation
from lockstep.curiosity.intrinsic import Bonus
from lockstep.ppo.advantages import advantages, vtrace, without_episode_ends
from lockstep.ppo.schedules import Schedule
from lockstep.ppo.settings import PPOConfig
from lockstep.rollout import Rollout

__all__ = ["Estimates", "Estimator"]

_REWARD_LIMIT = 10.0


class Estimates(NamedTuple):
    """Results of `Estimator`, each `[T, B]`."""

    log_probs: Tensor
    """Old log-probabilities: the denominator of the policy ratio."""
    advantages: Tensor
    targets: Tensor
    """Targets of the critic."""
    values: Tensor
    """Old value estimates."""
    ratios: Tensor
    """Probability ratios of the current policy to the one that collected, truncated at 1."""
    intrinsic: tuple[Tensor, ...] = ()
    """Targets and old values of the intrinsic value head, if there is one."""


class Estimator:
    """Computes the estimates of one shard's rollouts."""

    def __init__(self, agent: Agent, config: PPOConfig, vtrace: bool) -> None:
        """Use V-trace instead of GAE if `vtrace` is set."""
        self._agent = agent
        self._config = config
        self._vtrace = vtrace
        self._curiosity = None if agent.curiosity is None else agent.curiosity.config
        self.intrinsic_weight = Schedule.parse(0.0 if self._curiosity is None else self._curiosity.weight)
        """Schedule of the weight of intrinsic rewards or, with two value heads, of their advantages."""

    def __call__(self, rollout: Rollout, bonus: Bonus | None, progress: float, current: bool = False) -> Estimates:
        """Compute the estimates of one rollout. `progress` is in [0, 1]. With `current`, use values that are computed with the current weights."""
        config, valid = self._config, rollout.valid
        rewards, weight = self._rewards(rollout), self.intrinsic_weight(progress)
        values, log_probs, intrinsic_values = self._evaluate(rollout, current)
        if bonus is not None and intrinsic_values is None:
            rewards = rewards + weight * bonus.rewards
        log_ratios = log_probs - rollout.log_probs
        flags, discounts = (rollout.terminated, rollout.truncated, valid), (config.gamma, config.gae_lambda)
        advantage, targets = self._estimate(rewards, values, log_ratios, *flags, *discounts)
        intrinsic: tuple[Tensor, ...] = ()
        if bonus is not None and intrinsic_values is not None:
            intrinsic_advantages, intrinsic = self._intrinsic(bonus, intrinsic_values, log_ratios, valid)
            advantage = advantage + weight * intrinsic_advantages
        ratios = log_ratios.clamp_max(0).exp()
        return Estimates(log_probs, advantage, targets, values[:-1], ratios, intrinsic)

    def _evaluate(self, rollout: Rollout, current: bool) -> RolloutEvaluation:
        """Return the outputs of the networks as stored in the rollout or, if needed, computed with the current weights."""
        agent = self._agent
        if self._vtrace or (current and agent.state_size):
            # V-trace: PPO's ratio is relative to the current policy, and ρ in the advantages corrects for the policy that collected
            # (decoupled objective, Hilton et al. 2022, arXiv:2110.00641). With memory, values need the stored states, which only
            # `evaluate` reads.
            return agent.evaluate(rollout)
        if agent.layout.two_heads:
            evaluation = agent.evaluate(rollout)
            return evaluation if current else evaluation._replace(values=rollout.values, log_probs=rollout.log_probs)
        values = agent.values(rollout.observations, rollout.pixels) if current else rollout.values
        return RolloutEvaluation(values, rollout.log_probs, None)

    def _rewards(self, rollout: Rollout) -> Tensor:
        """Return the environment's rewards `[T, B]`, clipped and scaled as configured."""
        rewards, agent = rollout.rewards, self._agent
        if self._config.clip_rewards:
            rewards = rewards.sign()
        if agent.return_statistics is not None:
            rewards = (rewards / agent.return_statistics.std.to(agent.dtype)).clamp(-_REWARD_LIMIT, _REWARD_LIMIT)
        return rewards if self._curiosity is None else self._curiosity.extrinsic_weight * rewards

    def _intrinsic(
        self, bonus: Bonus, values: Tensor, log_ratios: Tensor, valid: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return advantages of intrinsic rewards, whose returns do not end with episodes, and targets and old values of their head."""
        assert self._curiosity is not None
        assert self._curiosity.gamma is not None
        values, *discounts = without_episode_ends(values, valid, self._curiosity.gamma, self._config.gae_lambda)
        never = torch.zeros_like(valid)
        valid_ratios = torch.where(valid, log_ratios, 0)
        advantage, targets = self._estimate(bonus.rewards, values, valid_ratios, never, never, valid, *discounts)
        return advantage, (targets, values[:-1])

    def _estimate(
        self,
        rewards: Tensor,
        values: Tensor,
        log_ratios: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        valid: Tensor,
        gamma: float | Tensor,
        decay: float | Tensor,
    ) -> tuple[Tensor, Tensor]:
        flags = terminated, truncated, valid
        if self._vtrace:
            return vtrace(rewards, values, log_ratios, *flags, gamma, decay)
        advantage = advantages(rewards, values, *flags, gamma, decay)
        return advantage, advantage + values[:-1]
