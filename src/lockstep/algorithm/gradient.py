"""The gradient of one step: every part of a minibatch gives sums, and the sums are added over all ranks."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import COLUMNS, Part, resets
from lockstep.compiling.kernels import Kernel, MakeKernel, eager
from lockstep.group.group import Group
from lockstep.ppo.losses import clipped_surrogate, divergence, penalized_surrogate, value_loss
from lockstep.ppo.settings import PPOConfig
from lockstep.ppo.statistics import STATISTICS

__all__ = ["LOSS_SCALARS", "GradientFormula", "OrderedGradient", "Replicate", "ReplicatedGradient", "TrainMask"]

Replicate = Callable[[nn.Module], nn.Module]
"""Wraps a module in PyTorch's DistributedDataParallel over the ranks that train, whose backward pass averages gradients over them.
Alone, a rank may get the module as it is."""

TrainMask = tuple[bool, bool]
"""Whether a step trains the policy, and whether it trains the critic."""

BLOCK = 1024
"""Rows that a kernel takes at once, so that what lies between two layers stays in the cache."""
LOSS_SCALARS = ("mean", "scale", "clip", "entropy", "kl_coefficient")
"""Numbers that a step's loss depends on: the mean of the minibatch's advantages over all shards, one over their deviation, ε of the
clip, the weights of the entropy and of the KL penalty."""


@dataclass(frozen=True)
class Loss:
    """The loss of one part of a minibatch, in sums over its rows."""

    agent: Agent
    config: PPOConfig
    trained: TrainMask

    @property
    def key(self) -> str:
        """Names all that the loss depends on besides shapes."""
        agent, config = self.agent, self.config
        chosen = (config.surrogate, config.value_clip, config.value_coefficient, config.normalize_advantages)
        sizes = (agent.spaces.observation_size, agent.spaces.choices, agent.spaces.continuous_size)
        curious = "" if agent.curiosity is None else agent.curiosity.key
        return f"{agent.policy} {list(agent.flat.parameters)} {sizes} {chosen} {self.trained} {curious}"

    def __call__(self, parameters: Tensor, values: Tensor, rows: Tensor, aim: Tensor) -> tuple[Tensor, Tensor]:
        """What the policy gave for the rows `[K, W]` -> the loss that is trained, and STATISTICS `[5]`."""
        config, layout = self.config, self.agent.layout
        actions = layout.actions(rows)
        if self.agent.spaces.discrete_actions is not None:
            actions = actions.squeeze(-1).to(torch.int64)
        old_log_probs, advantages, targets, old_values, weight = rows[:, -COLUMNS:].unbind(-1)
        mean, scale, clip, entropy_coefficient, kl_coefficient = aim.unbind()
        if config.normalize_advantages:
            advantages = (advantages - mean) * scale
        loss, found = weight.new_zeros(()), [weight.new_zeros(())] * len(STATISTICS)
        policy, value = self.trained
        if policy:
            log_probs, entropies = self.agent.distribution.log_prob_and_entropy(parameters, actions)
            log_ratio = log_probs - old_log_probs
            surrogate = (
                clipped_surrogate(log_ratio, advantages, clip)
                if config.surrogate == "clip"
                else penalized_surrogate(log_ratio, advantages, kl_coefficient)
            )
            policy_loss, entropy = (surrogate * weight).sum(), (entropies * weight).sum()
            loss = policy_loss - entropy_coefficient * entropy
            detached = log_ratio.detach()
            outside = ((detached.exp() - 1).abs() > clip).to(weight.dtype)
            found = [policy_loss, found[1], entropy, (divergence(detached) * weight).sum(), (outside * weight).sum()]
        if value:
            if not layout.two_heads:
                found[1] = (value_loss(values, targets, old_values, config.value_clip) * weight).sum()
            else:
                own, intrinsic = values.unbind(1)
                both = value_loss(own, targets, old_values, config.value_clip)
                both = both + value_loss(intrinsic, *layout.second(rows), config.value_clip)
                found[1] = (both * weight).sum()
            loss = loss + config.value_coefficient * found[1]
        return loss, torch.stack([x.detach() for x in found])


def _stride(agent: Agent) -> int:
    """The distance between the sequences of a part that train the predictor, `1 / curiosity.share`."""
    return 1 if agent.curiosity is None else round(1 / agent.curiosity.config.share)


def _chosen(agent: Agent, part: Part, rows: Tensor) -> Tensor:
    """Subsample the sequences of `[K, …]` that train the predictor. A minibatch is a random sample, so this is one too."""
    every, count = _stride(agent), len(rows) if part.states is None else len(part.states)
    return rows if every == 1 else rows.view(-1, count, *rows.shape[1:])[:, ::every].flatten(0, 1)


def _inputs(agent: Agent, part: Part) -> tuple[object, ...]:
    """What the networks take of a part."""
    observations = agent.layout.observations(part.rows)
    policy: tuple[Tensor | None, ...] = (observations,)
    if part.states is not None:
        policy = observations, part.pixels, part.states, resets(part.rows, len(part.states))
    elif part.pixels is not None:
        policy = observations, part.pixels
    if agent.curiosity is None or not agent.curiosity.losses:
        return (policy,)
    columns, images = agent.layout.columns(part.rows), None
    if part.pixels is not None and part.following is not None:
        images = _chosen(agent, part, part.pixels), _chosen(agent, part, part.following)
    return policy, _chosen(agent, part, columns), images


def _evaluate(loss: Loss, networks: Callable[..., Any], part: Part, aim: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The loss that is trained; STATISTICS, then curiosity's losses, all sums over the part's rows; and what the policy gave."""
    agent = loss.agent
    parameters, values, missed = networks(*_inputs(agent, part))
    total, found = loss(parameters, values, part.rows, aim)
    if missed is not None and agent.curiosity is not None:
        weight = _chosen(agent, part, part.rows[:, -1])
        # the stride, not the exact ratio of rows, which would differ between a part and the blocks that a kernel takes of it
        lost = (missed * weight.unsqueeze(1)).sum(0) * _stride(agent)
        for share, own in zip(agent.curiosity.weights, lost.unbind(), strict=True):
            total = total + share * own
        found = torch.cat([found, lost.detach()])
    return total, found, [parameters, values]


@dataclass(frozen=True)
class GradientFormula:
    """Weights `[P]`, rows `[K, W]` and AIM `[5]` -> `[P + 5 + n]`: gradient, STATISTICS and curiosity's losses, all sums over the rows."""

    loss: Loss
    name = "gradient"

    @property
    def key(self) -> str:
        """See `Formula.key`."""
        return f"gradient of {self.loss.key}"

    def __call__(self, *tensors: Tensor) -> tuple[Tensor]:
        """See the class."""
        weights, rows, aim = tensors
        agent = self.loss.agent
        parameters = {name: part.detach().requires_grad_() for name, part in agent.flat.named(weights).items()}
        networks = partial(functional_call, agent.networks, parameters)
        return (self._of(lambda *inputs: networks(inputs), list(parameters.values()), Part(rows), aim),)

    def here(self, part: Part, aim: Tensor) -> Tensor:
        """The same for any part, with the agent's own weights."""
        agent = self.loss.agent
        return self._of(agent.networks, list(agent.flat.parameters.values()), part, aim)

    def _of(self, networks: Callable[..., Any], parameters: Sequence[Tensor], part: Part, aim: Tensor) -> Tensor:
        with torch.enable_grad():
            loss, found, _ = _evaluate(self.loss, networks, part, aim)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([*(gradient.reshape(-1) for gradient in gradients), found])


class OrderedGradient:
    """Each part's gradient by itself, added in the order of the parts: the same bits whoever carries them."""

    def __init__(self, agent: Agent, config: PPOConfig, group: Group, make_kernel: MakeKernel = eager) -> None:
        self._agent = agent
        self._config = config
        self._group = group
        self._make_kernel = make_kernel
        self._kernels: dict[tuple[torch.Size, TrainMask], Kernel] = {}

    def __call__(self, minibatch: Sequence[Part], aim: Tensor, trained: TrainMask) -> Tensor:
        """Parts and AIM -> `[P + 5]`, gradient and STATISTICS, both sums over all ranks' samples."""
        buffers, sums = self._agent.trained_buffers, []
        with buffers.training():
            for part in minibatch:
                sums.append(buffers.append_to(self._sum(part, aim, trained)))
                buffers.rewind()
        total = self._group.reduce(sums[0].unsqueeze(0) if len(sums) == 1 else torch.stack(sums), "gradients")
        return buffers.split_off(total)

    def _sum(self, part: Part, aim: Tensor, trained: TrainMask) -> Tensor:
        weights, total = self._agent.flat.buffer, None
        if not self._agent.plain or self._make_kernel is eager:
            return GradientFormula(Loss(self._agent, self._config, trained)).here(part, aim)
        for block in self._blocks(part.rows):
            (found,) = self._kernel(block, trained)(weights, block, aim)
            total = found if total is None else total.add_(found)
        assert total is not None
        return total

    def _blocks(self, rows: Tensor) -> Sequence[Tensor]:
        """Rows in blocks of one size, or two; operation by operation, larger blocks are faster.

        Blocks begin at multiples of the predictor's stride, so that it is trained on the same rows either way.
        """
        if self._make_kernel is eager or len(rows) <= BLOCK:
            return [rows]
        count, stride = math.ceil(len(rows) / BLOCK), _stride(self._agent)
        blocks: Sequence[Tensor] = rows.split(math.ceil(len(rows) / count / stride) * stride)
        return blocks

    def make_kernels(self, rows: Tensor, trained: TrainMask) -> None:
        """Makes what parts of a minibatch like `rows` will need."""
        for block in self._blocks(rows):
            self._kernel(block, trained)

    def _kernel(self, rows: Tensor, trained: TrainMask) -> Kernel:
        known = self._kernels.get((rows.shape, trained))
        if known is None:
            agent = self._agent
            formula = GradientFormula(Loss(agent, self._config, trained))
            examples = (agent.flat.buffer, rows, agent.flat.buffer.new_zeros(len(LOSS_SCALARS)))
            known = self._kernels[rows.shape, trained] = self._make_kernel(formula, examples)
        return known


class ReplicatedGradient:
    """By PyTorch's DistributedDataParallel, which adds in buckets while the backward pass goes on: equal to rounding, and the same
    bits on every rank. What is added to what depends on the number of ranks.
    """

    def __init__(self, agent: Agent, config: PPOConfig, group: Group, replicate: Replicate) -> None:
        self._agent = agent
        self._config = config
        self._group = group
        self._module = replicate(agent.networks)

    def __call__(self, minibatch: Sequence[Part], aim: Tensor, trained: TrainMask) -> Tensor:
        """As `OrderedGradient`'s."""
        self._agent.networks.zero_grad()
        buffers, found, alone = self._agent.trained_buffers, [], getattr(self._module, "no_sync", nullcontext)
        with buffers.training():
            for part in minibatch[:-1]:
                with alone():  # these add up here, and the last part's backward pass takes them along
                    loss, statistics = self._loss(part, aim, trained)
                    loss.backward()
                found.append(buffers.append_to(statistics))
                buffers.rewind()
            loss, statistics = self._loss(minibatch[-1], aim, trained)
            found.append(buffers.append_to(statistics))
            # before the backward pass: ranks that come late are waited for here, where waiting is booked as such
            total = buffers.split_off(self._group.reduce(torch.stack(found), "statistics"))
            loss.backward()
        pieces = []
        for parameter in self._agent.flat.parameters.values():
            assert parameter.grad is not None
            pieces.append(parameter.grad.reshape(-1))
        return torch.cat([*pieces, total])

    def _loss(self, part: Part, aim: Tensor, trained: TrainMask) -> tuple[Tensor, Tensor]:
        # the wrapper's forward and none of the networks' own methods: it is what makes the backward pass reduce
        own = Loss(self._agent, self._config, trained)
        loss, found, given = _evaluate(own, self._module, part, aim)
        # every reduction waits for all parameters: what is not trained takes part with zeros
        idle = [0 * x.sum() for x, on in zip(given, trained, strict=True) if not on]
        return (loss + sum(idle)) * self._group.size, found  # against the average
