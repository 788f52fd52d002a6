"""What a rollout's steps were worth: rewards put together, advantages and value targets."""

from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.curiosity.intrinsic import Bonus
from lockstep.ppo.advantages import advantages, endless, vtrace
from lockstep.ppo.schedules import Schedule
from lockstep.ppo.settings import PPOConfig
from lockstep.rollout import Rollout

__all__ = ["Estimates", "Estimator"]

_REWARD_LIMIT = 10.0


class Estimates(NamedTuple):
    """Each `[T, B]`."""

    log_probs: Tensor
    """Old log-probabilities."""
    advantages: Tensor
    targets: Tensor
    """Of the critic."""
    values: Tensor
    """The critic's old values."""
    ratios: Tensor
    """To the policy that collected, at most 1."""
    second: tuple[Tensor, ...] = ()
    """With two heads, target and old value of the second."""


class Estimator:
    """Of one shard's rollouts, each by itself."""

    def __init__(self, agent: Agent, config: PPOConfig, vtrace: bool) -> None:
        """Arguments as in `Update`."""
        self._agent = agent
        self._config = config
        self._vtrace = vtrace
        self._curiosity = None if agent.curiosity is None else agent.curiosity.config
        self.weight = Schedule.parse(0.0 if self._curiosity is None else self._curiosity.weight)
        """Of intrinsic rewards or, with two heads, of their advantages."""

    def __call__(self, rollout: Rollout, bonus: Bonus | None, progress: float) -> Estimates:
        """`progress` in [0, 1] is the share of the run that is done."""
        config, agent, valid = self._config, self._agent, rollout.valid
        rewards, weight, intrinsic = self._rewards(rollout), self.weight(progress), None
        values, log_probs = rollout.values, rollout.log_probs
        if self._vtrace or agent.layout.two_heads:
            judged, found, intrinsic = agent.judge(rollout)
            if self._vtrace:
                # The policy that the clip keeps close to need not be the one that collected: ρ, inside of the advantages, leads from one
                # to the other (decoupled objective, Hilton et al. 2022, arXiv:2110.00641)
                values, log_probs = judged, found
        if bonus is not None and intrinsic is None:
            rewards = rewards + weight * bonus.rewards
        log_ratios = log_probs - rollout.log_probs
        flags, discounts = (rollout.terminated, rollout.truncated, valid), (config.gamma, config.gae_lambda)
        advantage, targets = self._estimate(rewards, values, log_ratios, *flags, *discounts)
        second: tuple[Tensor, ...] = ()
        if bonus is not None and intrinsic is not None:
            own, second = self._intrinsic(bonus, intrinsic, log_ratios, valid)
            advantage = advantage + weight * own
        return Estimates(log_probs, advantage, targets, values[:-1], log_ratios.clamp_max(0).exp(), second)

    def _rewards(self, rollout: Rollout) -> Tensor:
        """The environment's, `[T, B]`, as they are trained on."""
        rewards, agent = rollout.rewards, self._agent
        if self._config.clip_rewards:
            rewards = rewards.sign()
        if agent.return_moments is not None:
            rewards = (rewards / agent.return_moments.std.to(agent.dtype)).clamp(-_REWARD_LIMIT, _REWARD_LIMIT)
        return rewards if self._curiosity is None else self._curiosity.extrinsic_weight * rewards

    def _intrinsic(
        self, bonus: Bonus, values: Tensor, log_ratios: Tensor, valid: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Advantages of intrinsic rewards, which know no ends of episodes; targets and old values of their head."""
        assert self._curiosity is not None
        assert self._curiosity.gamma is not None
        values, *discounts = endless(values, valid, self._curiosity.gamma, self._config.gae_lambda)
        never = torch.zeros_like(valid)
        passed = torch.where(valid, log_ratios, 0)
        own, targets = self._estimate(bonus.rewards, values, passed, never, never, valid, *discounts)
        return own, (targets, values[:-1])

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
        """Advantages and value targets."""
        flags = terminated, truncated, valid
        if self._vtrace:
            return vtrace(rewards, values, log_ratios, *flags, gamma, decay)
        found = advantages(rewards, values, *flags, gamma, decay)
        return found, found + values[:-1]
