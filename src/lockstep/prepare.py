"""From rollouts to minibatches: advantages, permutations, and the statistics of all minibatches in one reduction."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.agent import Agent
from lockstep.group.group import Group, ordered_sum
from lockstep.ppo.advantages import advantages, vtrace
from lockstep.ppo.settings import PPOConfig
from lockstep.randomness import stream
from lockstep.rollout import Rollout

__all__ = ["FIT", "Batch", "Preparation", "as_parts"]

FIT = 5
"""Sums per shard that go ahead of the minibatches': targets, their squares, what the critic left of them, its squares, ratios."""

_REWARD_LIMIT = 10.0


def as_parts(rows: Tensor, fused: bool) -> Tensor:
    """What shards contribute to a sum, `[shards, n]` -> what this rank does: a row per shard or, fused, their sum `[1, n]`."""
    return ordered_sum(rows).unsqueeze(0) if fused else rows


@dataclass
class Batch:
    """What this rank trains on in one iteration: one part per shard or, fused, one for all, each cut in E × M minibatches of K
    samples.
    """

    rows: Tensor
    """`[R, W]`, of this rank's shards or, if data are shared, of all: observation (normalized), action, log-probability,
    advantage, value target, old value, weight side by side, so that a whole epoch is shuffled by one operation."""
    order: Tensor
    """`[parts, E, M, K]`: which rows."""
    table: Tensor
    """`[E, M, 3]`: count, mean and deviation of every minibatch's advantages, over all ranks."""
    metrics: dict[str, float]

    def minibatches(self) -> Iterator[tuple[int, list[float], list[Tensor]]]:
        """Yields (epoch, [count, mean, deviation], each part's rows `[K, W]`)."""
        for epoch, statistics in enumerate(self.table.tolist()):
            # part by part: rows that lie in a tensor of their own are aligned alike on every rank
            shuffled = [self.rows[part[epoch]].unbind(0) for part in self.order]
            for numbers, minibatch in zip(statistics, zip(*shuffled, strict=True), strict=True):
                yield epoch, numbers, list(minibatch)


class Preparation:
    """Makes a `Batch` of the rollouts of the shards that this rank trains on."""

    def __init__(
        self,
        agent: Agent,
        config: PPOConfig,
        group: Group,
        shards: Sequence[int],
        seed: int,
        share_data: bool,
        vtrace: bool,
        fused: bool,
    ) -> None:
        """Arguments as in `Update`."""
        self._agent = agent
        self._config = config
        self._group = group
        self._shards = shards
        self._seed = seed
        self._share_data = share_data
        self._vtrace = vtrace
        self._fused = fused
        self._epochs = max(config.epochs_of_policy, config.epochs_of_value)

    def __call__(self, rollouts: Sequence[Rollout], iteration: int) -> Batch:
        """One iteration's rollouts, ascending by shard."""
        prepared = [self._rows(rollout) for rollout in rollouts]
        rows = torch.cat([own for own, _ in prepared])
        if self._share_data:
            rows = self._exchange(rows.view(len(prepared), -1, rows.shape[1]))
            order = self._shared_order(iteration, len(rows), len(rows) // len(prepared[0][0]))
        else:
            order = self._order(iteration, len(prepared[0][0]))
        if self._fused:
            order = order.permute(1, 2, 0, 3).flatten(2).unsqueeze(0)
        weight, advantage = rows[:, -1], rows[:, -4]
        weighted = torch.stack([weight, advantage, advantage.square()], -1).to(torch.float64)  # 0 on reset rows already
        fits = as_parts(torch.stack([fit for _, fit in prepared]), self._fused)
        sums = torch.stack([weighted[part].sum(2).flatten() for part in order])
        total = self._group.reduce(torch.cat([fits, sums], 1), "advantages")
        count, first, second = total[FIT:].view(self._epochs, self._config.minibatches, 3).unbind(-1)
        count = count.clamp_min(1)
        mean = first / count
        table = torch.stack([count, mean, (second / count - mean.square()).clamp_min(0).sqrt()], -1)
        means = (total[:FIT] / count[0].sum()).tolist()
        metrics = {"explained_variance": _explained(means)} | ({"vtrace_ratio": means[-1]} if self._vtrace else {})
        return Batch(rows.to(self._agent.device), order.to(self._agent.device), table, metrics)

    def _rows(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """One shard's rows `[N, W]`, N = T × B with time first, and its `[FIT]` sums."""
        agent, weight = self._agent, rollout.valid.flatten()
        log_probs, values, advantage, targets, ratios = (x.flatten() for x in self._estimates(rollout))
        columns = [
            agent.normalize(rollout.observations[:-1]).cpu().flatten(0, 1),
            rollout.actions.reshape(len(weight), -1),
        ]
        columns += [x.unsqueeze(-1) for x in (log_probs, advantage, targets, values, weight)]
        rows = torch.cat([column.to(agent.dtype) for column in columns], -1)
        rows = torch.where(weight.unsqueeze(-1), rows, 0)  # weight 0 alone would not keep a NaN of a reset row out
        aimed, old = rows[:, -3].to(torch.float64), rows[:, -2].to(torch.float64)
        left = aimed - old
        known = torch.where(weight, ratios, 0).to(torch.float64)
        return rows, torch.stack([x.sum() for x in (aimed, aimed.square(), left, left.square(), known)])

    def _estimates(self, rollout: Rollout) -> tuple[Tensor, ...]:
        """Old log-probabilities, old values, advantages, value targets and truncated ratios to the policy that collected,
        each `[T, B]`.
        """
        config, agent = self._config, self._agent
        rewards, flags = rollout.rewards, (rollout.terminated, rollout.truncated, rollout.valid)
        if agent.return_moments is not None:
            rewards = (rewards / agent.return_moments.std.to(agent.dtype)).clamp(-_REWARD_LIMIT, _REWARD_LIMIT)
        if not self._vtrace:
            advantage = advantages(rewards, rollout.values, *flags, config.gamma, config.gae_lambda)
            old = rollout.values[:-1]
            return rollout.log_probs, old, advantage, advantage + old, torch.ones_like(advantage)
        # The policy that the clip keeps close to need not be the one that collected: ρ, inside of the advantages, leads from one
        # to the other (decoupled objective, Hilton et al. 2022, arXiv:2110.00641)
        values, log_probs = agent.judge(rollout.observations, rollout.actions)
        log_ratios = log_probs - rollout.log_probs
        advantage, targets = vtrace(rewards, values, log_ratios, *flags, config.gamma, config.gae_lambda)
        return log_probs, values[:-1], advantage, targets, log_ratios.clamp_max(0).exp()

    def _order(self, iteration: int, count: int) -> Tensor:
        """`[shards, E, M, K]`: each shard permutes its own `count` samples anew in every epoch."""
        order = []
        for place, shard in enumerate(self._shards):
            permutations = stream(self._seed, "minibatches", shard, iteration)
            order += [permutations.permutation(count) + place * count for _ in range(self._epochs)]
        cut = (len(self._shards), self._epochs, self._config.minibatches, -1)
        return torch.stack([torch.from_numpy(own) for own in order]).view(cut)

    def _exchange(self, rows: Tensor) -> Tensor:
        """This rank's `[shards, N, W]` -> everybody's `[S N, W]`, in shard order."""
        if not self._fused:
            return self._group.gather(rows, "samples").flatten(0, 1)
        # a fused rank contributes one row, so those of all ranks must be equally long
        held = self._group.gather(torch.tensor([[len(rows)]]), "samples").flatten().tolist()
        padded = rows.new_zeros(1, max(held), *rows.shape[1:])
        padded[0, : len(rows)] = rows
        everybody = self._group.gather(padded, "samples")
        return torch.cat([own[:count] for own, count in zip(everybody, held, strict=True)]).flatten(0, 1)

    def _shared_order(self, iteration: int, count: int, shards: int) -> Tensor:
        """`[own shards, E, M, K]`: all `count` samples are permuted together, and minibatch m is slice m of the permutation. Each of
        the `shards` takes an equal slice of that, so that shapes and the order of sums are those of any number of ranks.
        """
        permutations = stream(self._seed, "shared-minibatches", iteration)
        cut, own = (self._config.minibatches, shards, -1), list(self._shards)
        epochs = [torch.from_numpy(permutations.permutation(count)).view(cut)[:, own] for _ in range(self._epochs)]
        return torch.stack(epochs).permute(2, 0, 1, 3)


def _explained(means: Sequence[float]) -> float:
    """1 - Var[target - value] / Var[target], from the FIT means."""
    targets, targets_squared, left, left_squared, _ = means
    variance = targets_squared - targets * targets
    return 1 - (left_squared - left * left) / variance if variance > 0 else 0.0
