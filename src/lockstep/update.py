"""One PPO update, for every plan: prepare -> minibatches -> gradient -> step.

Each shard contributes sums; the group adds them in shard order; every decision is taken from the total. So the update is the
same, bit for bit, whoever carries the shards.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.agent import Agent
from lockstep.group.group import Group
from lockstep.ppo.adam import Adam
from lockstep.ppo.advantages import advantages
from lockstep.ppo.losses import clipped_surrogate, divergence, penalized_surrogate, value_loss
from lockstep.ppo.schedules import Schedule
from lockstep.ppo.settings import PPOConfig
from lockstep.ppo.statistics import KL, STATISTICS, Tally
from lockstep.randomness import stream
from lockstep.rollout import Rollout
from lockstep.state import check_state

__all__ = ["NonFinite", "Update"]

_REWARD_LIMIT = 10.0


class NonFinite(ArithmeticError):
    """A loss or gradient is NaN or infinite. The weights are still those of the last good step."""


@dataclass
class Samples:
    """One shard's rollout, ready to be trained on. N = T × B, flattened with time first."""

    rows: Tensor
    """`[N, W]`: observation (normalized), action, log-probability, advantage, value target, old value, weight side by side,
    so that a whole epoch is shuffled by one operation."""
    order: Tensor
    """`[E, N]`: every epoch's permutation."""


@dataclass
class Rates:
    """The scheduled numbers of one update."""

    policy: float
    value: float
    clip: float
    entropy: float


class Update:
    """Trains `agent` on rollouts. Holds what lives from one update to the next."""

    def __init__(self, agent: Agent, config: PPOConfig, group: Group, shards: Sequence[int], seed: int) -> None:
        """`shards` are the indices of the shards that this rank trains on, ascending; `seed` is the experiment's."""
        self.agent = agent
        self._config = config
        self._group = group
        self._shards = shards
        self._seed = seed
        self._epochs = max(config.epochs_of_policy, config.epochs_of_value)
        slices = agent.flat.slices if config.separate else {"all": slice(0, len(agent.flat.buffer))}
        self.adam = Adam(agent.flat.buffer, slices, config.adam_epsilon)
        self.rate_factor = 1.0
        """What the KL-adaptive learning rate has been multiplied by so far."""
        self.kl_coefficient = config.kl_coefficient
        """β of the surrogate `kl`."""
        self._learning_rate = Schedule.parse(config.learning_rate)
        self._value_rate = Schedule.parse(
            config.learning_rate if config.value_learning_rate is None else config.value_learning_rate
        )
        self._clip = Schedule.parse(config.clip)
        self._entropy = Schedule.parse(config.entropy)
        size = len(agent.flat.buffer)
        self._parts = torch.zeros(len(shards), size + len(STATISTICS), dtype=agent.dtype)

    def __call__(self, rollouts: Sequence[Rollout], iteration: int, progress: float) -> dict[str, float]:
        """All epochs over one iteration's rollouts, those of this rank's shards, ascending.

        `progress` in [0, 1] is the share of the run that is done. Returns the update's metrics, equal on every rank.
        Raises NonFinite on every rank at once. Without rollouts, on a rank that only plays, there is nothing to do.
        """
        if not rollouts:
            return {}
        observed = self._merge_moments(rollouts)
        samples, table, metrics = self._prepare(rollouts, iteration)
        rates = self._rates(progress)
        metrics |= self._train(samples, table, rates)
        if observed is not None and self.agent.observation_moments is not None:
            # only now: within an iteration, collecting and training see observations through the same moments
            self.agent.observation_moments.merge(observed)
            self.agent.refresh()
        self._adapt(metrics["last_kl"])
        return metrics | {"learning_rate": rates.policy, "clip": rates.clip, "entropy_coefficient": rates.entropy}

    def _merge_moments(self, rollouts: Sequence[Rollout]) -> Tensor | None:
        """Merges the return moments, which scale this iteration's rewards. Returns the sums of the observations."""
        if not rollouts[0].moments.numel():
            return None
        total = self._group.reduce(torch.stack([rollout.moments for rollout in rollouts]), "moments")
        if not bool(total.isfinite().all()):
            raise NonFinite("an observation or a reward is not finite; the environment gave NaN or infinity")
        if self.agent.return_moments is not None:
            self.agent.return_moments.merge(total[-3:])
            return total[:-3] if self.agent.observation_moments is not None else None
        return total

    def _prepare(self, rollouts: Sequence[Rollout], iteration: int) -> tuple[list[Samples], Tensor, dict[str, float]]:
        """Advantages, permutations, and `[E, M, 3]` count, mean and deviation of every minibatch's advantages."""
        prepared = [
            self._samples(rollout, shard, iteration) for rollout, shard in zip(rollouts, self._shards, strict=True)
        ]
        total = self._group.reduce(torch.stack([sums for _, sums in prepared]), "advantages")
        table = total[4:].view(self._epochs, self._config.minibatches, 3)
        count, first, second = table.unbind(-1)
        count = count.clamp_min(1)
        mean = first / count
        table = torch.stack([count, mean, (second / count - mean.square()).clamp_min(0).sqrt()], -1)
        return (
            [samples for samples, _ in prepared],
            table,
            {"explained_variance": _explained(total[:4], count[0].sum())},
        )

    def _samples(self, rollout: Rollout, shard: int, iteration: int) -> tuple[Samples, Tensor]:
        config, agent = self._config, self.agent
        rewards = rollout.rewards
        if agent.return_moments is not None:
            rewards = (rewards / agent.return_moments.std.to(agent.dtype)).clamp(-_REWARD_LIMIT, _REWARD_LIMIT)
        advantage = advantages(
            rewards,
            rollout.values,
            rollout.terminated,
            rollout.truncated,
            rollout.valid,
            config.gamma,
            config.gae_lambda,
        ).flatten()
        old = rollout.values[:-1].flatten()
        weight = rollout.valid.flatten()
        columns = [agent.normalize(rollout.observations[:-1]).flatten(0, 1), rollout.actions.reshape(len(old), -1)]
        columns += [x.unsqueeze(-1) for x in (rollout.log_probs.flatten(), advantage, advantage + old, old, weight)]
        permutations = stream(self._seed, "minibatches", shard, iteration)
        order = torch.stack([torch.from_numpy(permutations.permutation(len(old))) for _ in range(self._epochs)])
        weighted = torch.stack([weight, advantage, advantage.square()], -1).to(torch.float64)  # 0 on reset rows already
        minibatches = weighted[order].view(self._epochs, config.minibatches, -1, 3).sum(2)
        targets, left = weighted[:, 1] + torch.where(weight, old, 0).to(torch.float64), weighted[:, 1]
        fit = torch.stack([targets.sum(), targets.square().sum(), left.sum(), left.square().sum()])
        rows = torch.cat([column.to(agent.dtype) for column in columns], -1)
        rows = torch.where(weight.unsqueeze(-1), rows, 0)  # weight 0 alone would not keep a NaN of a reset row out
        return Samples(rows, order), torch.cat([fit, minibatches.flatten()])

    def _train(self, samples: Sequence[Samples], table: Tensor, rates: Rates) -> dict[str, float]:
        config, size = self._config, len(self.agent.flat.buffer)
        tally, stopped = Tally(config.minibatches), False
        for epoch, (count, mean, deviation), minibatches in self._minibatches(samples, table):
            policy, value = epoch < config.epochs_of_policy and not stopped, epoch < config.epochs_of_value
            if not (policy or value):
                break
            for part, minibatch in zip(self._parts, minibatches, strict=True):
                self._gradient(part, minibatch, mean, deviation, rates, policy, value)
            total = self._group.reduce(self._parts, "gradients").div_(count)
            gradient, found = total[:size], total[size:].tolist()
            norm = torch.linalg.vector_norm(gradient).item()
            if not math.isfinite(norm) or not all(map(math.isfinite, found)):
                raise NonFinite(
                    f"the gradient's norm is {norm} in epoch {epoch + 1}: lower ppo.learning_rate or look at the rewards"
                )
            tally.add(found, norm, policy, value)
            if policy and config.kl_stop is not None and found[KL] > config.kl_stop:
                stopped, policy = True, False
            if stopped and not (value and config.separate):
                break
            if config.max_grad_norm is not None:
                gradient.mul_(min(1.0, config.max_grad_norm / (norm + 1e-6)))
            self.adam.step(gradient, self._active(rates, policy, value))
        metrics = tally.metrics()
        loss = metrics["policy_loss"] + config.value_coefficient * metrics["value_loss"]
        return metrics | {"loss": loss - rates.entropy * metrics["entropy"], "kl_stopped": float(stopped)}

    def _minibatches(
        self, samples: Sequence[Samples], table: Tensor
    ) -> Iterator[tuple[int, list[float], list[Tensor]]]:
        """Yields (epoch, [count, mean, deviation] of the advantages, each shard's rows `[N / M, W]`)."""
        size = samples[0].order.shape[1] // self._config.minibatches
        for epoch in range(self._epochs):
            shuffled = [shard.rows[shard.order[epoch]].split(size) for shard in samples]
            for statistics, rows in zip(table[epoch].tolist(), zip(*shuffled, strict=True), strict=True):
                yield epoch, statistics, list(rows)

    def _gradient(
        self, part: Tensor, rows: Tensor, mean: float, deviation: float, rates: Rates, policy: bool, value: bool
    ) -> None:
        """Writes one shard's gradient and statistics, both sums over the minibatch, into `part`."""
        agent, config = self.agent, self._config
        observed = agent.spaces.observation_size
        observations, actions = rows[:, :observed], rows[:, observed:-5]
        old_log_probs, advantage, targets, old_values, weight = rows[:, -5:].unbind(-1)
        if config.normalize_advantages:
            advantage = (advantage - mean) * (1 / (deviation + 1e-8))
        if agent.spaces.discrete_actions is not None:
            actions = actions.squeeze(-1).to(torch.int64)
        zero = rows.new_zeros(())
        loss, found = zero, [zero] * len(STATISTICS)
        if policy and value:
            parameters, values = agent.policy(observations)
        else:
            parameters = agent.policy.act(observations) if policy else zero
            values = agent.policy.value(observations) if value else zero
        if policy:
            log_probs, entropies = agent.distribution.log_prob_and_entropy(parameters, actions)
            log_ratio = log_probs - old_log_probs
            surrogate = (
                clipped_surrogate(log_ratio, advantage, rates.clip)
                if config.surrogate == "clip"
                else penalized_surrogate(log_ratio, advantage, self.kl_coefficient)
            )
            policy_loss, entropy = surrogate @ weight, entropies @ weight
            loss = policy_loss - rates.entropy * entropy
            with torch.no_grad():
                outside = ((log_ratio.exp() - 1).abs() > rates.clip).to(weight.dtype)
                found = [policy_loss, zero, entropy, divergence(log_ratio) @ weight, outside @ weight]
        if value:
            found[1] = value_loss(values, targets, old_values, config.value_clip) @ weight
            loss = loss + config.value_coefficient * found[1]
        trained = [name for name, wanted in (("policy", policy), ("value", value)) if wanted]
        self._write(part, loss, trained, torch.stack([x.detach() for x in found]))

    def _write(self, part: Tensor, loss: Tensor, trained: Sequence[str], found: Tensor) -> None:
        flat = self.agent.flat
        inputs = [parameter for name in trained for parameter in flat.parameters[name]]
        gradients = torch.autograd.grad(loss, inputs)
        if len(trained) < len(flat.slices):
            part.zero_()
        start = flat.slices[trained[0]].start
        pieces = [gradient.reshape(-1) for gradient in gradients]
        torch.cat(pieces, out=part[start : start + sum(map(len, pieces))])
        part[len(flat.buffer) :] = found

    def _rates(self, progress: float) -> Rates:
        factor = self.rate_factor
        return Rates(
            self._learning_rate(progress) * factor,
            self._value_rate(progress) * factor,
            self._clip(progress),
            self._entropy(progress),
        )

    def _active(self, rates: Rates, policy: bool, value: bool) -> Mapping[str, float]:
        if not self._config.separate:
            return {"all": rates.policy}
        return {
            name: rate for name, rate, on in (("policy", rates.policy, policy), ("value", rates.value, value)) if on
        }

    def _adapt(self, kl: float) -> None:
        """Steers by the KL of the last epoch: the learning rate (as rl_games and rsl_rl do) and the penalty (paper, section 4)."""
        config = self._config
        if config.learning_rate_kl is not None:
            if kl > 2 * config.learning_rate_kl:
                self.rate_factor = max(self.rate_factor / 1.5, 1e-3)
            elif kl < config.learning_rate_kl / 2:
                self.rate_factor = min(self.rate_factor * 1.5, 1e2)
        if config.surrogate == "kl":
            if kl > 1.5 * config.kl_target:
                self.kl_coefficient = min(self.kl_coefficient * 2, 1e4)
            elif kl < config.kl_target / 1.5:
                self.kl_coefficient = max(self.kl_coefficient / 2, 1e-4)

    def state(self) -> dict[str, Tensor]:
        """All that a checkpoint needs besides the agent, by name."""
        factors = torch.tensor([self.rate_factor, self.kl_coefficient], dtype=torch.float64)
        return {**self.adam.state(), "factors": factors}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes back `state()`. Raises ValueError, naming the tensor, if one does not fit."""
        check_state(self.state(), state)
        self.adam.load(state)
        self.rate_factor, self.kl_coefficient = state["factors"].tolist()


def _explained(sums: Tensor, count: Tensor) -> float:
    """1 - Var[target - value] / Var[target], from sums and squares of targets and of their distance to the values."""
    targets, targets_squared, left, left_squared = (sums / count).tolist()
    variance = targets_squared - targets * targets
    return 1 - (left_squared - left * left) / variance if variance > 0 else 0.0
