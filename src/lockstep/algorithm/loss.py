"""The PPO loss of one microbatch of a minibatch, as sums over its rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Microbatch, row_weights, sequence_resets
from lockstep.ppo.losses import clipped_surrogate, divergence, penalized_surrogate, value_loss
from lockstep.ppo.settings import PPOConfig
from lockstep.ppo.statistics import STATISTICS

__all__ = ["LOSS_SCALARS", "Loss", "MicrobatchLoss", "TrainMask", "microbatch_loss", "predictor_stride"]

TrainMask = tuple[bool, bool]
"""Two flags: the step trains the policy, the step trains the critic."""

LOSS_SCALARS = ("mean", "scale", "clip", "entropy", "kl_coefficient")
"""Scalar inputs of the loss that change from step to step: mean and inverse standard deviation of the minibatch's advantages over all
shards, clip range ε, coefficients of the entropy and of the KL penalty."""


@dataclass(frozen=True)
class Loss:
    """The loss of policy and critic, in sums over rows."""

    agent: Agent
    config: PPOConfig
    trained: TrainMask
    unroll: bool = False
    """Run the policy's memory by operations that do not depend on the data, for a kernel."""

    def __call__(self, parameters: Tensor, values: Tensor, rows: Tensor, scalars: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the loss and STATISTICS `[5]` of the outputs of the networks.

        `parameters` of the action distribution are `[K, H]`, `values` `[K]` or, with two value heads, `[K, 2]`. `rows` `[K, W]` are laid out as
        in `RowLayout`, and `scalars` `[5]` as in LOSS_SCALARS.
        """
        config, layout, train_policy, train_value = self.config, self.agent.layout, *self.trained
        actions = layout.actions(rows)
        if self.agent.spaces.discrete_actions is not None:
            actions = actions.squeeze(-1).to(torch.int64)
        old_log_probs, advantages, targets, old_values, weights = layout.scalars(rows)
        mean, scale, clip, entropy_coefficient, kl_coefficient = scalars.unbind()
        if config.normalize_advantages:
            advantages = (advantages - mean) * scale
        loss, statistics = weights.new_zeros(()), [weights.new_zeros(())] * len(STATISTICS)
        if train_policy:
            log_probs, entropies = self.agent.distribution.log_prob_and_entropy(parameters, actions)
            log_ratio = log_probs - old_log_probs
            surrogate = (
                clipped_surrogate(log_ratio, advantages, clip)
                if config.surrogate == "clip"
                else penalized_surrogate(log_ratio, advantages, kl_coefficient)
            )
            policy_loss, entropy = (surrogate * weights).sum(), (entropies * weights).sum()
            loss = policy_loss - entropy_coefficient * entropy
            detached = log_ratio.detach()
            clipped = ((detached.exp() - 1).abs() > clip).to(weights.dtype)
            kl, clip_fraction = (divergence(detached) * weights).sum(), (clipped * weights).sum()
            statistics = [policy_loss, statistics[1], entropy, kl, clip_fraction]
        if train_value:
            if not layout.two_heads:
                losses = value_loss(values, targets, old_values, config.value_clip)
            else:
                extrinsic, intrinsic = values.unbind(1)
                losses = value_loss(extrinsic, targets, old_values, config.value_clip)
                losses = losses + value_loss(intrinsic, *layout.intrinsic_values(rows), config.value_clip)
            statistics[1] = (losses * weights).sum()
            loss = loss + config.value_coefficient * statistics[1]
        return loss, torch.stack([x.detach() for x in statistics])


class MicrobatchLoss(NamedTuple):
    """The loss of one microbatch of a minibatch, with what it was computed from."""

    loss: Tensor
    statistics: Tensor
    """STATISTICS, then the losses of curiosity, `[5 + n]`, all sums over the microbatch's rows."""
    outputs: tuple[Tensor, Tensor]
    """Parameters of the action distribution, and values."""


def microbatch_loss(
    loss: Loss, networks: Callable[..., Any], microbatch: Microbatch, scalars: Tensor
) -> MicrobatchLoss:
    """Run the networks on a microbatch, and compute the loss of policy, critic and curiosity."""
    agent = loss.agent
    parameters, values, predictor_losses = networks(*_inputs(loss, microbatch))
    total, statistics = loss(parameters, values, microbatch.rows, scalars)
    if predictor_losses is not None and agent.curiosity is not None:
        weights = _subsample(agent, microbatch, row_weights(microbatch.rows))
        # scaled by the stride: the exact ratio of rows would differ between a microbatch and the blocks that a kernel splits it into
        sums = (predictor_losses * weights.unsqueeze(1)).sum(0) * predictor_stride(agent)
        for coefficient, predictor_loss in zip(agent.curiosity.weights, sums.unbind(), strict=True):
            total = total + coefficient * predictor_loss
        statistics = torch.cat([statistics, sums.detach()])
    return MicrobatchLoss(total, statistics, (parameters, values))


def predictor_stride(agent: Agent) -> int:
    """Return the distance between the sequences of a microbatch that train the predictor of curiosity, `1 / curiosity.share`."""
    return 1 if agent.curiosity is None else round(1 / agent.curiosity.config.share)


def _subsample(agent: Agent, microbatch: Microbatch, rows: Tensor) -> Tensor:
    """Return the sequences of `[K, …]` that train the predictor. A minibatch is a random sample, so this is one too."""
    stride, count = predictor_stride(agent), len(rows) if microbatch.states is None else len(microbatch.states)
    return rows if stride == 1 else rows.view(-1, count, *rows.shape[1:])[:, ::stride].flatten(0, 1)


def _inputs(loss: Loss, microbatch: Microbatch) -> tuple[object, ...]:
    """Return the inputs of the networks: those of the policy and, if curiosity has a loss, its inputs and images."""
    agent = loss.agent
    observations = agent.layout.observations(microbatch.rows)
    policy: tuple[Tensor | bool | None, ...] = (observations,)
    if microbatch.states is not None:
        policy = (
            observations,
            microbatch.pixels,
            microbatch.states,
            sequence_resets(microbatch.rows, len(microbatch.states)),
            loss.unroll,
        )
    elif microbatch.pixels is not None:
        policy = observations, microbatch.pixels
    if agent.curiosity is None or not agent.curiosity.losses:
        return (policy,)
    columns, images = agent.layout.curiosity_inputs(microbatch.rows), None
    if microbatch.pixels is not None and microbatch.next_pixels is not None:
        images = _subsample(agent, microbatch, microbatch.pixels), _subsample(agent, microbatch, microbatch.next_pixels)
    return policy, _subsample(agent, microbatch, columns), images
