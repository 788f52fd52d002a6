"""Preparing minibatches from rollouts: packed rows, permutations, and the advantage statistics of every minibatch."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Batch, ImageRows, RowScalars, row_weights, sequence_resets
from lockstep.algorithm.estimates import Estimator
from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.sample_order import SampleOrder, sequence_rows
from lockstep.curiosity.intrinsic import CURIOSITY_SUMS, Bonus, IntrinsicRewards, reward_metrics
from lockstep.group.group import Group, ordered_sum
from lockstep.ppo.settings import PPOConfig
from lockstep.rollout import Rollout

__all__ = ["VALUE_FIT_SUMS", "Preparation", "group_rows"]

VALUE_FIT_SUMS = 5
"""The number of sums in `_value_fit_sums`."""


def group_rows(shard_rows: Tensor, fused: bool) -> Tensor:
    """Convert the summands of shards, `[shards, n]`, to those that a rank contributes: a row per shard or, fused, one sum `[1, n]`."""
    return ordered_sum(shard_rows).unsqueeze(0) if fused else shard_rows


class _Samples(NamedTuple):
    """Samples of this rank's shards or, if data are shared, of all shards, from which minibatches are drawn."""

    rows: Tensor
    """`[shards × N, W]`."""
    images: list[Tensor]
    """`[N + B, P]` per shard; empty without images."""
    states: Tensor
    """`[shards, T / L × B, S]`: states of the policy at the start of sequences, as stored while collecting."""
    shards: int


class Preparation:
    """Creates a `Batch` from the rollouts of the shards that this rank trains on."""

    def __init__(
        self, agent: Agent, config: PPOConfig, group: Group, shards: Sequence[int], seed: int, options: UpdateOptions
    ) -> None:
        """Arguments as in `Update`."""
        self.intrinsic: IntrinsicRewards | None = None
        """The source of intrinsic rewards, if there are any."""
        curiosity = agent.curiosity
        if curiosity is not None:
            gamma = config.gamma if curiosity.config.gamma is None else curiosity.config.gamma
            self.intrinsic = IntrinsicRewards(curiosity, gamma, shards, self._reduce_curiosity)
        self._estimate = Estimator(agent, config, options.vtrace)
        self._agent = agent
        self._config = config
        self._group = group
        self._options = options
        self._epochs = max(config.epochs_of_policy, config.epochs_of_value)
        self._order = SampleOrder(seed, shards, self._epochs, config.minibatch_count)

    def _reduce_curiosity(self, rows: Tensor) -> Tensor:
        return self._group.reduce(group_rows(rows, self._options.fused), "curiosity")

    def __call__(self, rollouts: Sequence[Rollout], iteration: int, progress: float) -> Batch:
        """Prepare one iteration's rollouts, ascending by shard. `progress` in [0, 1] is the fraction of the run that is done."""
        steps, environments = rollouts[0].rewards.shape
        bonuses: Sequence[Bonus | None] = [None] * len(rollouts) if self.intrinsic is None else self.intrinsic(rollouts)
        packed = [self._pack_shard(*pair, progress) for pair in zip(rollouts, bonuses, strict=True)]
        sums = group_rows(torch.stack([shard_sums for _, shard_sums in packed]), self._options.fused)
        samples = self._samples(rollouts, [rows for rows, _ in packed])
        sequence_numbers = self._draw_sequences(samples, iteration)
        order = sequence_rows(sequence_numbers, steps * environments // samples.states.shape[1], environments)
        statistics, total = self._advantage_statistics(samples.rows, order, sums)
        batch = Batch(
            samples.rows.to(self._agent.device),
            order.to(self._agent.device),
            statistics,
            self._metrics(total, statistics[0, :, 0].sum(), progress),
        )
        if self._config.recompute_advantages:
            # without the batch, which would keep its memory until the garbage collector looks for cycles
            batch.recompute = partial(self._recompute, samples.rows, order, rollouts, bonuses, progress)
        self._add_images(batch, samples, environments)
        self._add_states(batch, samples, sequence_numbers, environments)
        return batch

    def _pack_shard(self, rollout: Rollout, bonus: Bonus | None, progress: float) -> tuple[Tensor, Tensor]:
        """Return one shard's rows `[N, W]`, N = T × B with time first, and its `_value_fit_sums`, of both heads, and those of curiosity."""
        agent, weights = self._agent, rollout.valid.flatten()
        estimates = self._estimate(rollout, bonus, progress)
        columns = [
            self._normalized(rollout.observations[:-1]).flatten(0, 1),
            rollout.actions.reshape(len(weights), -1),
        ]
        if bonus is not None and agent.layout.curiosity_size:
            columns.append(bonus.columns)
        scalars = RowScalars(estimates.log_probs, estimates.advantages, estimates.targets, estimates.values, weights)
        columns += [column.reshape(-1, 1) for column in (*estimates.intrinsic, *scalars)]
        rows = torch.cat([column.to(agent.dtype) for column in columns], -1)
        rows[~weights] = 0  # a weight of 0 alone would let a NaN of a reset row through
        packed = agent.layout.scalars(rows)
        ratios = torch.where(weights, estimates.ratios.flatten(), 0)
        sums = [_value_fit_sums(packed.value_targets, packed.values, ratios)]
        if estimates.intrinsic:
            sums.append(_value_fit_sums(*agent.layout.intrinsic_values(rows), weights))
        return rows, torch.cat(sums if bonus is None else [*sums, bonus.metric_sums])

    def _normalized(self, observations: Tensor) -> Tensor:
        """Normalize observations. Infinite values stay infinite: clamping would hide them from the numeric guard."""
        normalized = self._agent.normalize(observations).cpu()
        if self._agent.observation_statistics is None:
            return normalized
        return torch.where(observations.isinf(), observations.to(normalized.dtype), normalized)

    def _samples(self, rollouts: Sequence[Rollout], rows: Sequence[Tensor]) -> _Samples:
        """Bring together what minibatches are drawn from; if data are shared, from all ranks."""
        images = [rollout.pixels.flatten(0, 1) for rollout in rollouts if rollout.pixels.numel()]
        states = torch.stack([rollout.states.flatten(0, 1) for rollout in rollouts])
        if not self._options.share_data:
            return _Samples(rows[0] if len(rows) == 1 else torch.cat(list(rows)), images, states, len(rows))
        shared = self._gather_shards(torch.stack(list(rows)))
        images = list(self._gather_shards(torch.stack(images))) if images else []
        states = self._gather_shards(states) if states.numel() else states
        return _Samples(shared.flatten(0, 1), images, states, len(shared))

    def _gather_shards(self, rows: Tensor) -> Tensor:
        """Gather `[shards, …]` of this rank from all ranks, in shard order."""
        if not self._options.fused:
            return self._group.gather(rows, "samples")
        # a fused rank contributes one row, so the rows of all ranks must have the same length
        counts = self._group.gather(torch.tensor([[len(rows)]]), "samples").flatten().tolist()
        padded = rows.new_zeros(1, max(counts), *rows.shape[1:])
        padded[0, : len(rows)] = rows
        gathered = self._group.gather(padded, "samples")
        return torch.cat([rank_rows[:count] for rank_rows, count in zip(gathered, counts, strict=True)])

    def _draw_sequences(self, samples: _Samples, iteration: int) -> Tensor:
        sequences = samples.states.shape[1]
        if self._options.share_data:
            sequence_numbers = self._order.shared(iteration, samples.shards * sequences, samples.shards)
        else:
            sequence_numbers = self._order.separate(iteration, sequences)
        return sequence_numbers.permute(1, 2, 0, 3).flatten(2).unsqueeze(0) if self._options.fused else sequence_numbers

    def _advantage_statistics(self, rows: Tensor, order: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Compute count, mean and standard deviation of the advantages of every minibatch over all shards, `[E, M, 3]`, for an `order`
        `[parts, E, M, K]` of rows.

        Two passes in float64: the second one adds squared deviations from the mean, so that no precision is lost if the mean is much larger than
        the deviation. The `sums` for metrics are reduced along with the first pass; the second result is their total.
        """
        scalars = self._agent.layout.scalars(rows)
        counted = torch.stack([scalars.weights, scalars.advantages], -1).to(torch.float64)  # 0 on reset rows already
        minibatches = [counted[part] for part in order]
        first_pass = torch.stack([part.sum(2).flatten() for part in minibatches])
        reduced = self._group.reduce(torch.cat([sums, first_pass], 1), "advantages")
        total, reduced = reduced.split([sums.shape[1], reduced.numel() - sums.shape[1]])
        count, advantage_sum = reduced.view(*order.shape[1:3], 2).unbind(-1)
        count = count.clamp_min(1)
        mean = advantage_sum / count
        deviations = [part[..., 0] * (part[..., 1] - mean.unsqueeze(-1)) for part in minibatches]
        second_pass = torch.stack([part.square().sum(2).flatten() for part in deviations])
        variance = self._group.reduce(second_pass, "advantages").view_as(mean) / count
        return torch.stack([count, mean, variance.sqrt()], -1), total

    def _recompute(
        self,
        rows: Tensor,
        order: Tensor,
        rollouts: Sequence[Rollout],
        bonuses: Sequence[Bonus | None],
        progress: float,
        batch: Batch,
        epoch: int,
    ) -> None:
        """Recompute advantages and value targets before an epoch, with the current critic (Andrychowicz et al. 2021, arXiv:2006.05990,
        section 3.5). `rows` and `order` are those of the batch, on the CPU.
        """
        layout, columns = self._agent.layout, []
        for rollout, bonus in zip(rollouts, bonuses, strict=True):
            estimates = self._estimate(rollout, bonus, progress, current=True)
            columns.append(torch.stack([estimates.advantages, estimates.targets, *estimates.intrinsic[:1]], -1))
        shards = torch.stack(columns).flatten(1, 2).to(rows.dtype)
        recomputed = (self._gather_shards(shards) if self._options.share_data else shards).flatten(0, 1)
        recomputed = torch.where(row_weights(rows).unsqueeze(1) > 0, recomputed, 0)
        for tensor in (rows,) if batch.rows is rows else (rows, batch.rows):
            layout.set_estimates(tensor, recomputed.to(tensor.device))
        parts = len(order) if self._options.fused else len(rollouts)
        no_sums = torch.zeros(parts, 0, dtype=torch.float64)
        statistics, _ = self._advantage_statistics(rows, order[:, epoch : epoch + 1], no_sums)
        batch.advantage_statistics[epoch] = statistics[0]

    def _add_images(self, batch: Batch, samples: _Samples, environments: int) -> None:
        if samples.images:
            curiosity = self._agent.curiosity
            # to the GPU once, since each epoch needs all of them
            batch.pixels = ImageRows([images.to(self._agent.device) for images in samples.images], environments)
            batch.needs_next_pixels = curiosity is not None and curiosity.sees_images

    def _add_states(self, batch: Batch, samples: _Samples, sequence_numbers: Tensor, environments: int) -> None:
        if self._agent.state_size:
            device = self._agent.device
            batch.sequence_numbers = sequence_numbers.to(device)
            batch.initial_states = partial(self._initial_states, samples.states.to(device), environments)

    @torch.no_grad()
    def _initial_states(self, states: Tensor, count: int, batch: Batch, epoch: int) -> Tensor:
        """Return the initial states `[R / L, S]` of all sequences for an epoch, from the `states` `[shards, T / L × B, S]` that were stored
        while collecting.

        These were computed with older weights; the difference grows from epoch to epoch. They are used as stored ("stored state" of Kapturowski et al.
        2019, R2D2) or, with `rollout.recompute_states`, recomputed from the first state of the rollout with the current weights.
        """
        if epoch == 0 or not self._options.recompute_states:
            return states.flatten(0, 1)
        policy, layout, recomputed = self._agent.policy, self._agent.layout, []
        length = len(batch.rows) // (states.shape[0] * states.shape[1])
        chunks = states.shape[1] // count
        for shard, shard_rows in enumerate(batch.rows.view(len(states), chunks, length * count, -1)):
            state = states[shard, :count]
            for chunk, rows in enumerate(shard_rows):
                recomputed.append(state)
                first = (shard * chunks + chunk) * length * count
                numbers = torch.arange(first, first + len(rows))
                images = None if batch.pixels is None else batch.pixels[numbers].to(rows.device)
                state = policy.remember(layout.observations(rows), images, state, sequence_resets(rows, count))
                state = torch.where((row_weights(rows[-count:]) == 0).unsqueeze(1), 0, state)
        return torch.cat(recomputed)

    def _metrics(self, total: Tensor, count: Tensor, progress: float) -> dict[str, float]:
        means = (total[:VALUE_FIT_SUMS] / count).tolist()
        metrics = {"explained_variance": _explained_variance(means)}
        if self._options.vtrace:
            metrics["vtrace_ratio"] = means[-1]
        if self._agent.layout.two_heads:
            means = (total[VALUE_FIT_SUMS : 2 * VALUE_FIT_SUMS] / count).tolist()
            metrics["intrinsic_explained_variance"] = _explained_variance(means)
        if self.intrinsic is not None:
            metrics |= reward_metrics(total[-CURIOSITY_SUMS:].tolist())
            metrics["curiosity_weight"] = self._estimate.intrinsic_weight(progress)
        return metrics


def _value_fit_sums(targets: Tensor, values: Tensor, ratios: Tensor) -> Tensor:
    """Return a shard's float64 sums of: value targets, their squares, residuals (target - value), their squares, policy ratios."""
    targets, values, ratios = (column.to(torch.float64) for column in (targets, values, ratios))
    residuals = targets - values
    return torch.stack([x.sum() for x in (targets, targets.square(), residuals, residuals.square(), ratios)])


def _explained_variance(means: Sequence[float]) -> float:
    """Return 1 - Var[target - value] / Var[target], from the means of `_value_fit_sums`."""
    target, target_square, residual, residual_square, _ = means
    variance = target_square - target * target
    return 1 - (residual_square - residual * residual) / variance if variance > 0 else 0.0
