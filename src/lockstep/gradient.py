"""The gradient of one step: every part of a minibatch gives sums, and the sums are added over all ranks."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lockstep.agent import Agent
from lockstep.group.group import Group
from lockstep.ppo.losses import clipped_surrogate, divergence, penalized_surrogate, value_loss
from lockstep.ppo.settings import PPOConfig
from lockstep.ppo.statistics import STATISTICS

__all__ = ["Aim", "OrderedGradient", "Replicate", "ReplicatedGradient"]

Replicate = Callable[[nn.Module], nn.Module]
"""Wraps a module in PyTorch's DistributedDataParallel over the ranks that train, whose backward pass averages gradients over them.
Alone, a rank may get the module as it is."""

COLUMNS = 5
"""Columns of a row behind observation and action: log-probability, advantage, value target, old value, weight."""


@dataclass(frozen=True)
class Aim:
    """What one gradient step trains, and with which numbers."""

    policy: bool
    value: bool
    mean: float
    """Of the minibatch's advantages, over all shards."""
    deviation: float
    clip: float
    entropy: float
    kl_coefficient: float


class OrderedGradient:
    """Each part's gradient by itself, added in the order of the parts: the same bits whoever carries them."""

    def __init__(self, agent: Agent, config: PPOConfig, group: Group, parts: int) -> None:
        """`parts` is how many this rank has."""
        self._agent = agent
        self._config = config
        self._group = group
        self._sums = torch.zeros(
            parts, len(agent.flat.buffer) + len(STATISTICS), dtype=agent.dtype, device=agent.device
        )

    def __call__(self, minibatch: Sequence[Tensor], aim: Aim) -> Tensor:
        """Rows `[K, W]` of each part -> `[P + 5]`, gradient and STATISTICS, both sums over all ranks' samples."""
        for sums, rows in zip(self._sums, minibatch, strict=True):
            self._write(sums, rows, aim)
        return self._group.reduce(self._sums, "gradients")

    def _write(self, sums: Tensor, rows: Tensor, aim: Aim) -> None:
        agent, flat = self._agent, self._agent.flat
        batch = _Columns(rows, agent, self._config, aim)
        if aim.policy and aim.value:
            parameters, values = agent.policy(batch.observations)
        else:
            parameters = agent.policy.act(batch.observations) if aim.policy else None
            values = agent.policy.value(batch.observations) if aim.value else None
        loss, found = _loss(batch, parameters, values, agent, self._config, aim)
        trained = [name for name, wanted in (("policy", aim.policy), ("value", aim.value)) if wanted]
        gradients = torch.autograd.grad(loss, [parameter for name in trained for parameter in flat.parameters[name]])
        if len(trained) < len(flat.slices):
            sums.zero_()
        start = flat.slices[trained[0]].start
        pieces = [gradient.reshape(-1) for gradient in gradients]
        torch.cat(pieces, out=sums[start : start + sum(map(len, pieces))])
        sums[len(flat.buffer) :] = found


class ReplicatedGradient:
    """By PyTorch's DistributedDataParallel, which adds in buckets while the backward pass goes on: equal to rounding, and the same
    bits on every rank. What is added to what depends on the number of ranks.
    """

    def __init__(self, agent: Agent, config: PPOConfig, group: Group, replicate: Replicate) -> None:
        self._agent = agent
        self._config = config
        self._group = group
        self._module = replicate(agent.policy)

    def __call__(self, minibatch: Sequence[Tensor], aim: Aim) -> Tensor:
        """As `OrderedGradient`'s."""
        self._agent.policy.zero_grad()
        found, alone = [], getattr(self._module, "no_sync", nullcontext)
        for rows in minibatch[:-1]:
            with alone():  # these add up here, and the last part's backward pass takes them along
                loss, statistics = self._loss(rows, aim)
                loss.backward()
            found.append(statistics)
        loss, statistics = self._loss(minibatch[-1], aim)
        # before the backward pass: ranks that come late are waited for here, where waiting is booked as such
        total = self._group.reduce(torch.stack([*found, statistics]), "statistics")
        loss.backward()
        pieces = []
        for parameter in itertools.chain.from_iterable(self._agent.flat.parameters.values()):
            assert parameter.grad is not None
            pieces.append(parameter.grad.reshape(-1))
        return torch.cat([*pieces, total])

    def _loss(self, rows: Tensor, aim: Aim) -> tuple[Tensor, Tensor]:
        batch = _Columns(rows, self._agent, self._config, aim)
        # the wrapper's forward and none of the policy's own methods: it is what makes the backward pass reduce
        parameters, values = self._module(batch.observations)
        loss, found = _loss(
            batch, parameters if aim.policy else None, values if aim.value else None, self._agent, self._config, aim
        )
        # every reduction waits for all parameters: what is not trained takes part with zeros
        loss = loss + sum(0 * x.sum() for x, trained in ((parameters, aim.policy), (values, aim.value)) if not trained)
        return loss * self._group.size, found  # against the average


class _Columns:
    """A minibatch's rows by what is in them."""

    def __init__(self, rows: Tensor, agent: Agent, config: PPOConfig, aim: Aim) -> None:
        observed = agent.spaces.observation_size
        self.observations, self.actions = rows[:, :observed], rows[:, observed:-COLUMNS]
        if agent.spaces.discrete_actions is not None:
            self.actions = self.actions.squeeze(-1).to(torch.int64)
        self.log_probs, self.advantages, self.targets, self.values, self.weight = rows[:, -COLUMNS:].unbind(-1)
        if config.normalize_advantages:
            self.advantages = (self.advantages - aim.mean) * (1 / (aim.deviation + 1e-8))


def _loss(
    batch: _Columns, parameters: Tensor | None, values: Tensor | None, agent: Agent, config: PPOConfig, aim: Aim
) -> tuple[Tensor, Tensor]:
    """Loss and STATISTICS, sums over the rows. None for what is not trained."""
    zero, weight = batch.weight.new_zeros(()), batch.weight
    loss, found = zero, [zero] * len(STATISTICS)
    if parameters is not None:
        log_probs, entropies = agent.distribution.log_prob_and_entropy(parameters, batch.actions)
        log_ratio = log_probs - batch.log_probs
        surrogate = (
            clipped_surrogate(log_ratio, batch.advantages, aim.clip)
            if config.surrogate == "clip"
            else penalized_surrogate(log_ratio, batch.advantages, aim.kl_coefficient)
        )
        policy_loss, entropy = surrogate @ weight, entropies @ weight
        loss = policy_loss - aim.entropy * entropy
        with torch.no_grad():
            outside = ((log_ratio.exp() - 1).abs() > aim.clip).to(weight.dtype)
            found = [policy_loss, zero, entropy, divergence(log_ratio) @ weight, outside @ weight]
    if values is not None:
        found[1] = value_loss(values, batch.targets, batch.values, config.value_clip) @ weight
        loss = loss + config.value_coefficient * found[1]
    return loss, torch.stack([x.detach() for x in found])
