"""Intrinsic rewards of a rank's shards: scaled, counted, and carried on from one update to the next."""

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
"""What is counted of intrinsic rewards: their sum, their squares', how many, the sum of the returns of episodes that ended, how many."""


@dataclass
class Bonus:
    """Of one shard and iteration."""

    rewards: Tensor
    """`[T, B]`, scaled; 0 on reset rows."""
    columns: Tensor
    """`[T × B, C]`, see `Curiosity.columns`."""
    counts: Tensor
    """`[CURIOSITY_SUMS]` float64."""


class IntrinsicRewards:
    """Asks a method how new everything is, and makes rewards of it."""

    def __init__(self, curiosity: Curiosity, gamma: float, shards: Sequence[int], reduce: Reduce) -> None:
        """`shards` are those of this rank, ascending; `reduce` adds over all shards of all ranks."""
        self._curiosity = curiosity
        self._gamma = gamma
        self._shards = shards
        self._reduce = reduce
        self._carried: dict[int, dict[str, Tensor]] = {}

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Merge the observations of an iteration into the moments that methods see them through."""
        self._ensure_carried(rollouts)  # a checkpoint may be written during warm-up, before any reward is asked for
        if self._curiosity.moments.keys() & {"features", "pixels"}:
            self._curiosity.observe(rollouts, self._reduce)

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Bonus]:
        """The intrinsic rewards of one iteration's rollouts, ascending by shard.

        They are divided by the running standard deviation of their discounted return, which goes on over the ends of episodes (Burda et
        al. 2019, arXiv:1810.12894, section 2.4), over all shards.
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
        """`[T, B]` float64: `G_t = γ G_{t-1} + r_t`, over reset rows as if they were not there."""
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
        """What is carried when `count` environments begin."""
        zeros = torch.zeros(count, dtype=torch.float64)
        method = {f"method.{name}": value for name, value in self._curiosity.carry(count).items()}
        return {"discounted": zeros, "return": zeros.clone(), **method}

    def renew(self) -> None:
        """All environments begin new episodes: what was remembered of the old ones is forgotten."""
        for own in self._carried.values():
            fresh = self._begun(len(own["return"]))
            for name, value in fresh.items():
                if name != "discounted":
                    own[name].copy_(value)

    def state(self) -> dict[int, dict[str, Tensor]]:
        """All that a checkpoint needs, by shard."""
        return self._carried

    def load(self, shard: int, state: Mapping[str, Tensor]) -> None:
        """Takes back a shard's `state()`. Raises ValueError, naming the tensor, if one does not fit."""
        if "return" not in state:
            raise ValueError("tensor 'return' is missing")
        own = self._begun(len(state["return"]))
        check_state(own, state)
        self._carried[shard] = {name: value.clone() for name, value in state.items()}


def _of_method(carried: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a method remembers: the same tensors under the names that it gave them."""
    return {name.removeprefix("method."): value for name, value in carried.items() if name.startswith("method.")}


def _counted(rewards: Tensor, rollout: Rollout, running: Tensor) -> Tensor:
    """COUNTS of a shard. `running` `[B]`, the episodes' returns so far, goes on."""
    ended = (rollout.terminated | rollout.truncated).numpy()
    own, carried = rewards.to(torch.float64), running.numpy()
    sums, over = own.cumsum(0).numpy(), ended.any(0)
    # all episodes of an environment that ended, up to the last step of the last one: what comes after it is carried on
    last = len(ended) - 1 - ended[::-1].argmax(0)
    before = np.where(over, sums[last, np.arange(len(last))], 0.0)
    returns = (carried + before)[over].sum()
    carried[:] = np.where(over, 0.0, carried) + sums[-1] - before
    counts = [own.sum().item(), own.square().sum().item(), rollout.valid.sum().item(), returns, ended.sum()]
    return torch.tensor(counts, dtype=torch.float64)


def described(counts: Sequence[float]) -> dict[str, float]:
    """Metrics of COUNTS over all shards."""
    total, squares, steps, returns, episodes = counts
    mean = total / max(steps, 1)
    spread = max(squares / max(steps, 1) - mean * mean, 0.0) ** 0.5
    found = {"intrinsic_reward_mean": mean, "intrinsic_reward_std": spread}
    return found | {"intrinsic_return": returns / episodes} if episodes else found
