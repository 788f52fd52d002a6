"""Intrinsic rewards of a rank's shards: scaling, metrics, and state from one update to the next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lockstep.compiling.recurrence import recur
from lockstep.curiosity.curiosity import Curiosity, Reduce, Transitions
from lockstep.models.state import check_state
from lockstep.rollout import Rollout

__all__ = ["CURIOSITY_SUMS", "Bonus", "IntrinsicRewards", "reward_metrics"]

CURIOSITY_SUMS = 5
"""The number of sums in `Bonus.metric_sums`."""


@dataclass
class Bonus:
    """Intrinsic rewards of one shard in one iteration."""

    rewards: Tensor
    """`[T, B]`, scaled; 0 on rows that are not valid."""
    columns: Tensor
    """`[T × B, C]`, see `Curiosity.columns`."""
    metric_sums: Tensor
    """`[CURIOSITY_SUMS]` float64: sum and sum of squares of intrinsic rewards, number of steps; sum of intrinsic returns of the episodes that
    ended, and their number."""


class IntrinsicRewards:
    """Computes scaled intrinsic rewards by a curiosity method."""

    def __init__(self, curiosity: Curiosity, gamma: float, shards: Sequence[int], reduce: Reduce) -> None:
        """`shards` are the indices of this rank's shards, ascending; `reduce` sums over all shards of all ranks."""
        self._curiosity = curiosity
        self._gamma = gamma
        self._shards = shards
        self._reduce = reduce
        self._states: dict[int, dict[str, Tensor]] = {}

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Merge the observations of an iteration into the statistics that normalize the inputs of methods."""
        self._ensure_states(rollouts)  # a checkpoint may be written during warm-up, before any reward is computed
        if self._curiosity.statistics.keys() & {"features", "pixels"}:
            self._curiosity.observe(rollouts, self._reduce)

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Bonus]:
        """Compute the intrinsic rewards of one iteration's rollouts, ascending by shard, divided by the running standard deviation of their
        discounted return, which does not end with episodes (Burda et al. 2019, arXiv:1810.12894, section 2.4).
        """
        curiosity, steps = self._curiosity, len(rollouts[0].rewards)
        self._ensure_states(rollouts)
        collected = [rollout.collected() for rollout in rollouts]
        transitions = [curiosity.transitions(rollout) for rollout in collected]
        states = [self._states[shard] for shard in self._shards]
        novelty = curiosity.reward(transitions, [_method_state(state) for state in states], self._reduce)
        rewards = [torch.where(shard.valid, values, 0) for shard, values in zip(transitions, novelty, strict=True)]
        if curiosity.config.normalize_rewards:
            rewards = self._normalized(rewards, transitions, states)
        return [
            Bonus(
                _padded(reward, steps),
                _padded(curiosity.columns(shard), steps * reward.shape[1]),
                _count_rewards(reward, rollout, state["return"]),
            )
            for reward, shard, rollout, state in zip(rewards, transitions, collected, states, strict=True)
        ]

    def _normalized(
        self, rewards: Sequence[Tensor], transitions: Sequence[Transitions], states: Sequence[Mapping[str, Tensor]]
    ) -> list[Tensor]:
        """Divide rewards by the running standard deviation of their discounted return, which this iteration's returns update."""
        statistics, sums = self._curiosity.statistics["returns"], []
        for reward, shard, state in zip(rewards, transitions, states, strict=True):
            sums.append(statistics.sums(self._returns(reward, shard, state).view(-1, 1), shard.valid.flatten()))
        statistics.merge(self._reduce(torch.stack(sums)), statistics.mean)
        return [(reward / statistics.std).to(reward.dtype) for reward in rewards]

    def _returns(self, rewards: Tensor, transitions: Transitions, state: Mapping[str, Tensor]) -> Tensor:
        """Return `G_t = γ G_{t-1} + r_t`, `[T, B]` float64, which skips reset rows."""
        returns = rewards.to(torch.float64, copy=True).numpy()
        running, discounts = state["discounted"].numpy(), np.where(transitions.valid.numpy(), self._gamma, 1.0)
        returns[0] += discounts[0] * running
        recur(returns, discounts[1:])
        running[:] = np.where(np.isfinite(returns[-1]), returns[-1], 0)  # these returns never start again
        return torch.from_numpy(returns)

    def _ensure_states(self, rollouts: Sequence[Rollout]) -> None:
        if not self._states:
            self._states = {shard: self._initial_state(rollouts[0].rewards.shape[1]) for shard in self._shards}

    def _initial_state(self, count: int) -> dict[str, Tensor]:
        zeros = torch.zeros(count, dtype=torch.float64)
        method = {f"method.{name}": value for name, value in self._curiosity.initial_state(count).items()}
        return {"discounted": zeros, "return": zeros.clone(), **method}

    def restart_episodes(self) -> None:
        """Reset the per-episode state, when all environments start new episodes."""
        for state in self._states.values():
            for name, initial in self._initial_state(len(state["return"])).items():
                if name != "discounted":
                    state[name].copy_(initial)

    def state(self) -> dict[int, dict[str, Tensor]]:
        """State for a checkpoint, by shard."""
        return self._states

    def load(self, shard: int, state: Mapping[str, Tensor]) -> None:
        """Restore the `state()` of a shard. Raises ValueError, naming the tensor, if one does not fit."""
        if "return" not in state:
            raise ValueError("tensor 'return' is missing")
        check_state(self._initial_state(len(state["return"])), state)
        self._states[shard] = {name: value.clone() for name, value in state.items()}


def _method_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of the method: the same tensors, under the method's own names."""
    return {name.removeprefix("method."): value for name, value in state.items() if name.startswith("method.")}


def _padded(rows: Tensor, count: int) -> Tensor:
    """Append rows of zeros, up to `count` rows, for the steps that were not taken."""
    return rows if len(rows) == count else torch.cat([rows, rows.new_zeros(count - len(rows), *rows.shape[1:])])


def _count_rewards(rewards: Tensor, rollout: Rollout, running: Tensor) -> Tensor:
    """Return the `Bonus.metric_sums` of a shard, and update `running` `[B]`, the intrinsic returns of the current episodes."""
    ended, valid = (rollout.terminated | rollout.truncated).numpy(), rollout.valid.numpy()
    rewards, current = rewards.to(torch.float64), running.numpy()
    sums, has_end = rewards.cumsum(0).numpy(), ended.any(0)
    # the last step of the last episode that ended in an environment: later rewards belong to the current episode
    last = len(ended) - 1 - ended[::-1].argmax(0)
    finished = np.where(has_end, sums[last, np.arange(len(last))], 0.0)
    # an episode in which the environment failed is not counted; its rewards in this rollout are 0 already
    first = ended.argmax(0)
    counted = np.where(valid[first, np.arange(len(first))], current, 0.0)
    returns = (counted + finished)[has_end].sum()
    current[:] = np.where(has_end, 0.0, current) + sums[-1] - finished
    counts = [
        rewards.sum().item(),
        rewards.square().sum().item(),
        rollout.valid.sum().item(),
        returns,
        (ended & valid).sum(),
    ]
    return torch.tensor(counts, dtype=torch.float64)


def reward_metrics(counts: Sequence[float]) -> dict[str, float]:
    """Return the metrics of `Bonus.metric_sums` summed over all shards."""
    total, squares, steps, returns, episodes = counts
    mean = total / max(steps, 1)
    spread = max(squares / max(steps, 1) - mean * mean, 0.0) ** 0.5
    metrics = {"intrinsic_reward_mean": mean, "intrinsic_reward_std": spread}
    return metrics | {"intrinsic_return": returns / episodes} if episodes else metrics
