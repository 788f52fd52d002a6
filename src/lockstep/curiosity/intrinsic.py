"""Intrinsic rewards of a rank's shards: scaling, metrics, and state from one update to the next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lockstep.curiosity.curiosity import Curiosity, Reduce, Transitions
from lockstep.models.state import check_state
from lockstep.rollout import Rollout

__all__ = ["CURIOSITY_SUMS", "Bonus", "IntrinsicRewards", "described"]

CURIOSITY_SUMS = 5
"""The number of sums in `Bonus.counts`."""


@dataclass
class Bonus:
    """Intrinsic rewards of one shard in one iteration."""

    rewards: Tensor
    """`[T, B]`, scaled; 0 on reset rows."""
    columns: Tensor
    """`[T × B, C]`, see `Curiosity.columns`."""
    counts: Tensor
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
        self._carried: dict[int, dict[str, Tensor]] = {}

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Merge the observations of an iteration into the statistics that normalize the inputs of methods."""
        self._ensure_carried(rollouts)  # a checkpoint may be written during warm-up, before any reward is computed
        if self._curiosity.moments.keys() & {"features", "pixels"}:
            self._curiosity.observe(rollouts, self._reduce)

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Bonus]:
        """Compute the intrinsic rewards of one iteration's rollouts, ascending by shard.

        They are divided by the running standard deviation, over all shards, of their discounted return, which does not end with episodes
        (Burda et al. 2019, arXiv:1810.12894, section 2.4).
        """
        curiosity = self._curiosity
        self._ensure_carried(rollouts)
        steps = [curiosity.steps(rollout) for rollout in rollouts]
        carried = [self._carried[shard] for shard in self._shards]
        found = curiosity.reward(steps, [_of_method(own) for own in carried], self._reduce)
        rewards = [torch.where(own.valid, new, 0) for own, new in zip(steps, found, strict=True)]
        if curiosity.config.normalize_rewards:
            moments = curiosity.moments["returns"]
            returns = [self._returns(*of) for of in zip(rewards, steps, carried, strict=True)]
            sums = [moments.sums(own.view(-1, 1), of.valid.flatten()) for own, of in zip(returns, steps, strict=True)]
            moments.merge(self._reduce(torch.stack(sums)), moments.mean)
            rewards = [(own / moments.std).to(own.dtype) for own in rewards]
        return [
            Bonus(own, curiosity.columns(of), _counted(own, rollout, kept["return"]))
            for own, of, rollout, kept in zip(rewards, steps, rollouts, carried, strict=True)
        ]

    def _returns(self, rewards: Tensor, steps: Transitions, carried: Mapping[str, Tensor]) -> Tensor:
        """Return `G_t = γ G_{t-1} + r_t`, `[T, B]` float64, which skips reset rows."""
        found = rewards.to(torch.float64, copy=True).numpy()
        running, decay = carried["discounted"].numpy(), np.where(steps.valid.numpy(), self._gamma, 1.0)
        before, passed = running, np.empty_like(running)
        for now, kept in zip(found, decay, strict=True):
            np.multiply(before, kept, out=passed)
            now += passed
            before = now
        running[:] = before
        return torch.from_numpy(found)

    def _ensure_carried(self, rollouts: Sequence[Rollout]) -> None:
        if not self._carried:
            self._carried = {shard: self._begun(rollouts[0].rewards.shape[1]) for shard in self._shards}

    def _begun(self, count: int) -> dict[str, Tensor]:
        """Return the initial state of `count` environments."""
        zeros = torch.zeros(count, dtype=torch.float64)
        method = {f"method.{name}": value for name, value in self._curiosity.carry(count).items()}
        return {"discounted": zeros, "return": zeros.clone(), **method}

    def renew(self) -> None:
        """Reset the per-episode state, when all environments start new episodes."""
        for own in self._carried.values():
            fresh = self._begun(len(own["return"]))
            for name, value in fresh.items():
                if name != "discounted":
                    own[name].copy_(value)

    def state(self) -> dict[int, dict[str, Tensor]]:
        """State for a checkpoint, by shard."""
        return self._carried

    def load(self, shard: int, state: Mapping[str, Tensor]) -> None:
        """Restore the `state()` of a shard. Raises ValueError, naming the tensor, if one does not fit."""
        if "return" not in state:
            raise ValueError("tensor 'return' is missing")
        own = self._begun(len(state["return"]))
        check_state(own, state)
        self._carried[shard] = {name: value.clone() for name, value in state.items()}


def _of_method(carried: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of the method: the same tensors, under the method's own names."""
    return {name.removeprefix("method."): value for name, value in carried.items() if name.startswith("method.")}


def _counted(rewards: Tensor, rollout: Rollout, running: Tensor) -> Tensor:
    """Return the `Bonus.counts` of a shard, and update `running` `[B]`, the intrinsic returns of the current episodes."""
    ended = (rollout.terminated | rollout.truncated).numpy()
    own, carried = rewards.to(torch.float64), running.numpy()
    sums, over = own.cumsum(0).numpy(), ended.any(0)
    # the last step of the last episode that ended in an environment: later rewards belong to the current episode
    last = len(ended) - 1 - ended[::-1].argmax(0)
    before = np.where(over, sums[last, np.arange(len(last))], 0.0)
    returns = (carried + before)[over].sum()
    carried[:] = np.where(over, 0.0, carried) + sums[-1] - before
    counts = [own.sum().item(), own.square().sum().item(), rollout.valid.sum().item(), returns, ended.sum()]
    return torch.tensor(counts, dtype=torch.float64)


def described(counts: Sequence[float]) -> dict[str, float]:
    """Return the metrics of `Bonus.counts` summed over all shards."""
    total, squares, steps, returns, episodes = counts
    mean = total / max(steps, 1)
    spread = max(squares / max(steps, 1) - mean * mean, 0.0) ** 0.5
    found = {"intrinsic_reward_mean": mean, "intrinsic_reward_std": spread}
    return found | {"intrinsic_return": returns / episodes} if episodes else found
