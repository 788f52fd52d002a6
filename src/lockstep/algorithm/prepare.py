"""From rollouts to minibatches: advantages, permutations, and the advantage statistics of all minibatches."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Batch, Pixels, resets
from lockstep.algorithm.estimates import Estimator
from lockstep.curiosity.intrinsic import CURIOSITY_SUMS, Bonus, IntrinsicRewards, described
from lockstep.group.group import Group, ordered_sum
from lockstep.ppo.settings import PPOConfig
from lockstep.randomness import stream
from lockstep.rollout import Rollout

__all__ = ["VALUE_FIT_SUMS", "Preparation", "as_parts"]

VALUE_FIT_SUMS = 5
"""Sums per shard that go ahead of the minibatches': targets, their squares, what the critic left of them, its squares, ratios."""


def as_parts(rows: Tensor, fused: bool) -> Tensor:
    """What shards contribute to a sum, `[shards, n]` -> what this rank does: a row per shard or, fused, their sum `[1, n]`."""
    return ordered_sum(rows).unsqueeze(0) if fused else rows


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
        recompute: bool,
    ) -> None:
        """Arguments as in `Update`."""
        own = agent.curiosity
        self.drive: IntrinsicRewards | None = None
        """Intrinsic rewards, if there are any."""
        if own is not None:
            gamma = config.gamma if own.config.gamma is None else own.config.gamma
            self.drive = IntrinsicRewards(own, gamma, shards, self._reduce)
        self._estimate = Estimator(agent, config, vtrace)
        self._agent = agent
        self._config = config
        self._group = group
        self._shards = shards
        self._seed = seed
        self._share_data = share_data
        self._vtrace = vtrace
        self._fused = fused
        self._recompute = recompute
        self._epochs = max(config.epochs_of_policy, config.epochs_of_value)

    def _reduce(self, rows: Tensor) -> Tensor:
        return self._group.reduce(as_parts(rows, self._fused), "curiosity")

    def __call__(self, rollouts: Sequence[Rollout], iteration: int, progress: float) -> Batch:
        """One iteration's rollouts, ascending by shard. `progress` in [0, 1] is the share of the run that is done."""
        bonuses: Sequence[Bonus | None] = [None] * len(rollouts)
        if self.drive is not None:
            bonuses = self.drive(rollouts)
        prepared = [self._rows(*of, progress) for of in zip(rollouts, bonuses, strict=True)]
        rows, own = torch.cat([own for own, _ in prepared]), len(prepared[0][0])
        images = [rollout.pixels.flatten(0, 1) for rollout in rollouts if rollout.pixels.numel()]
        states = torch.stack([rollout.states.flatten(0, 1) for rollout in rollouts])
        environments, sequences = rollouts[0].rewards.shape[1], states.shape[1]
        if self._share_data:
            rows = self._exchange(rows.view(len(prepared), -1, rows.shape[1])).flatten(0, 1)
            images = list(self._exchange(torch.stack(images))) if images else []
            states = self._exchange(states) if states.numel() else states
            starts = self._shared_order(iteration, len(rows) // own * sequences, len(rows) // own)
        else:
            starts = self._order(iteration, sequences)
        if self._fused:
            starts = starts.permute(1, 2, 0, 3).flatten(2).unsqueeze(0)
        order = _steps(starts, own // sequences, environments)
        fits = as_parts(torch.stack([fit for _, fit in prepared]), self._fused)
        table, told = self._statistics(rows, order, fits)
        metrics = self._described(told, table[0, :, 0].sum(), progress)
        batch = Batch(rows.to(self._agent.device), order.to(self._agent.device), table, metrics)
        if images:
            batch.pixels = Pixels(images, environments)
            batch.ahead = self._agent.curiosity is not None and self._agent.curiosity.sees_images
        if self._agent.state_size:
            batch.starts = starts.to(self._agent.device)
            batch.remember = partial(self._remembered, batch, states.to(self._agent.device), environments)
        return batch

    def _statistics(self, rows: Tensor, order: Tensor, fits: Tensor) -> tuple[Tensor, Tensor]:
        """Compute count, mean and standard deviation of the advantages of every minibatch over all shards, `[E, M, 3]`.

        Two passes in float64: squares are of deviations from the mean, so that a mean far above the deviation costs no digits. `fits`
        (FIT of this rank's shards) ride in the first reduction; the second result is their total.
        """
        counted = torch.stack([rows[:, -1], rows[:, -4]], -1).to(
            torch.float64
        )  # advantages are 0 on reset rows already
        minibatches = [counted[part] for part in order]
        sums = torch.stack([own.sum(2).flatten() for own in minibatches])
        total = self._group.reduce(torch.cat([fits, sums], 1), "advantages")
        told, total = total.split([fits.shape[1], total.numel() - fits.shape[1]])
        count, first = total.view(self._epochs, self._config.minibatches, 2).unbind(-1)
        count = count.clamp_min(1)
        mean = first / count
        deviations = [own[..., 0] * (own[..., 1] - mean.unsqueeze(-1)) for own in minibatches]
        squares = torch.stack([own.square().sum(2).flatten() for own in deviations])
        variance = self._group.reduce(squares, "advantages").view_as(mean) / count
        return torch.stack([count, mean, variance.sqrt()], -1), told

    @torch.no_grad()
    def _remembered(self, batch: Batch, states: Tensor, count: int, epoch: int) -> Tensor:
        """Starting states `[R / L, S]` of an epoch, of the `states` `[shards, T / L × B, S]` that were noted while collecting.

        These were made by older weights, the more so the later the epoch. They are used as they are ("stored state" of Kapturowski et al.
        2019, R2D2) or, with `rollout.recompute_states`, made anew from the rollout's first by the weights of now.
        """
        if epoch == 0 or not self._recompute:
            return states.flatten(0, 1)
        policy, found = self._agent.policy, []
        observed, length = self._agent.spaces.observation_size, len(batch.rows) // (states.shape[0] * states.shape[1])
        chunks = states.shape[1] // count
        for shard, rows in enumerate(batch.rows.view(len(states), chunks, length * count, -1)):
            state = states[shard, :count]
            for chunk, own in enumerate(rows):
                found.append(state)
                first = (shard * chunks + chunk) * length * count
                at = torch.arange(first, first + len(own))
                images = None if batch.pixels is None else batch.pixels[at].to(own.device)
                state = policy.remember(own[:, :observed], images, state, resets(own, count))
                state = torch.where((own[-count:, -1] == 0).unsqueeze(1), 0, state)
        return torch.cat(found)

    def _described(self, told: Tensor, count: Tensor, progress: float) -> dict[str, float]:
        """Metrics of the sums that went ahead of the minibatches'."""
        means = (told[:VALUE_FIT_SUMS] / count).tolist()
        metrics = {"explained_variance": _explained(means)} | ({"vtrace_ratio": means[-1]} if self._vtrace else {})
        if self._agent.layout.two_heads:
            metrics["intrinsic_explained_variance"] = _explained(
                (told[VALUE_FIT_SUMS : 2 * VALUE_FIT_SUMS] / count).tolist()
            )
        if self.drive is None:
            return metrics
        return (
            metrics | described(told[-CURIOSITY_SUMS:].tolist()) | {"curiosity_weight": self._estimate.weight(progress)}
        )

    def _rows(self, rollout: Rollout, bonus: Bonus | None, progress: float) -> tuple[Tensor, Tensor]:
        """One shard's rows `[N, W]`, N = T × B with time first, and its sums: FIT, FIT of the second head if there is one, COUNTS."""
        agent, weight = self._agent, rollout.valid.flatten()
        found = self._estimate(rollout, bonus, progress)
        columns = [
            agent.normalize(rollout.observations[:-1]).cpu().flatten(0, 1),
            rollout.actions.reshape(len(weight), -1),
        ]
        columns += [bonus.columns] if bonus is not None and agent.layout.curious else []
        last = *found.second, found.log_probs, found.advantages, found.targets, found.values, weight
        columns += [x.reshape(-1, 1) for x in last]
        rows = torch.cat([column.to(agent.dtype) for column in columns], -1)
        rows = torch.where(weight.unsqueeze(-1), rows, 0)  # weight 0 alone would not keep a NaN of a reset row out
        sums = [_fit(rows[:, -3], rows[:, -2], torch.where(weight, found.ratios.flatten(), 0))]
        if found.second:
            sums.append(_fit(*agent.layout.second(rows), weight))
        return rows, torch.cat(sums if bonus is None else [*sums, bonus.counts])

    def _order(self, iteration: int, count: int) -> Tensor:
        """`[shards, E, M, n]`: each shard permutes its own `count` sequences anew in every epoch."""
        order = []
        for place, shard in enumerate(self._shards):
            permutations = stream(self._seed, "minibatches", shard, iteration)
            order += [permutations.permutation(count) + place * count for _ in range(self._epochs)]
        cut = (len(self._shards), self._epochs, self._config.minibatches, -1)
        return torch.stack([torch.from_numpy(own) for own in order]).view(cut)

    def _exchange(self, rows: Tensor) -> Tensor:
        """This rank's `[shards, N, W]` -> everybody's, in shard order."""
        if not self._fused:
            return self._group.gather(rows, "samples")
        # a fused rank contributes one row, so those of all ranks must be equally long
        held = self._group.gather(torch.tensor([[len(rows)]]), "samples").flatten().tolist()
        padded = rows.new_zeros(1, max(held), *rows.shape[1:])
        padded[0, : len(rows)] = rows
        everybody = self._group.gather(padded, "samples")
        return torch.cat([own[:count] for own, count in zip(everybody, held, strict=True)])

    def _shared_order(self, iteration: int, count: int, shards: int) -> Tensor:
        """`[own shards, E, M, n]`: all `count` sequences are permuted together, and minibatch m is slice m of the permutation. Each of
        the `shards` takes an equal slice of that, so that shapes and the order of sums are those of any number of ranks.
        """
        permutations = stream(self._seed, "shared-minibatches", iteration)
        cut, own = (self._config.minibatches, shards, -1), list(self._shards)
        epochs = [torch.from_numpy(permutations.permutation(count)).view(cut)[:, own] for _ in range(self._epochs)]
        return torch.stack(epochs).permute(2, 0, 1, 3)


def _steps(starts: Tensor, length: int, count: int) -> Tensor:
    """Numbers of sequences `[…, n]` -> of their rows `[…, L × n]`, step 0 of all, then step 1, …. Rows of a shard are `[T, B]`, sequences
    `[T / L, B]`, with `length` L and `count` B.
    """
    first = starts // count * (length * count) + starts % count
    return (first.unsqueeze(-2) + count * torch.arange(length).unsqueeze(-1)).flatten(-2)


def _fit(targets: Tensor, values: Tensor, ratios: Tensor) -> Tensor:
    """FIT of a shard."""
    aimed, old = targets.to(torch.float64), values.to(torch.float64)
    left, known = aimed - old, ratios.to(torch.float64)
    return torch.stack([x.sum() for x in (aimed, aimed.square(), left, left.square(), known)])


def _explained(means: Sequence[float]) -> float:
    """1 - Var[target - value] / Var[target], from the FIT means."""
    targets, targets_squared, left, left_squared, _ = means
    variance = targets_squared - targets * targets
    return 1 - (left_squared - left * left) / variance if variance > 0 else 0.0
