"""The tensors that travel: what one shard collected in one iteration.

Shape letters, used everywhere: `T` steps, `B` environments of one shard, `O` observation size, `A` action size.
Time comes first. Row `t` holds the observation, the action taken on it, and what the environment answered.

Episode ends follow one convention (next-step autoreset): the observation after `terminated | truncated` is the last one of
its episode; the row that starts from it is a reset row. Its action is ignored, its reward is 0 and `valid` is False.

    t            0     1     2         3        4
    observation  o0    o1    o2        last     first of the next episode
    terminated   .     .     yes       .        .
    valid        yes   yes   yes       no       yes
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

__all__ = ["EPISODE_COLUMNS", "Rollout"]

EPISODE_COLUMNS = 2
"""Columns of `Rollout.episodes`: return, length."""


@dataclass
class Rollout:
    """One shard's T steps in B environments. All tensors live on the CPU and keep their shape from one iteration to the next."""

    observations: Tensor
    """`[T + 1, B, O]`, as the environments gave them (not normalized); row T is what the next rollout starts from."""
    actions: Tensor
    """`[T, B]` int64 for a discrete action, `[T, B, A]` float for a continuous one, as the policy drew it (not clipped, not squashed)."""
    rewards: Tensor
    """`[T, B]`, as the environments gave them."""
    terminated: Tensor
    """`[T, B]` bool: the action led to a terminal state; nothing follows, so nothing is bootstrapped."""
    truncated: Tensor
    """`[T, B]` bool: the episode was cut, by a time limit say; the value of the last observation is bootstrapped."""
    valid: Tensor
    """`[T, B]` bool: False for reset rows, which count nowhere."""
    values: Tensor
    """`[T + 1, B]`: the critic's estimate with the weights that collected."""
    log_probs: Tensor
    """`[T, B]`: log-probability of the action under the weights that collected."""
    moments: Tensor
    """Float64 sums over valid rows, see `Moments.sums`: observations (if normalized), then discounted returns (if normalized)."""
    episodes: Tensor
    """`[T, B, 2]` float64: return and length (steps) of the episode that ended at this row; NaN where none did."""

    @classmethod
    def empty(
        cls, steps: int, count: int, observation_size: int, action_size: int | None, moments: int, dtype: torch.dtype
    ) -> "Rollout":
        """Allocates a rollout of `steps` × `count`. `action_size` is None for a discrete action."""
        rows = (steps, count)
        discrete = action_size is None
        return cls(
            # torch aligns to 64 bytes: some BLAS kernels round differently on other alignments
            observations=torch.zeros(steps + 1, count, observation_size, dtype=dtype),
            actions=torch.zeros(rows, dtype=torch.int64)
            if discrete
            else torch.zeros(*rows, action_size or 0, dtype=dtype),
            rewards=torch.zeros(rows, dtype=dtype),
            terminated=torch.zeros(rows, dtype=torch.bool),
            truncated=torch.zeros(rows, dtype=torch.bool),
            valid=torch.ones(rows, dtype=torch.bool),
            values=torch.zeros(steps + 1, count, dtype=dtype),
            log_probs=torch.zeros(rows, dtype=dtype),
            moments=torch.zeros(moments, dtype=torch.float64),
            episodes=torch.full((*rows, EPISODE_COLUMNS), torch.nan, dtype=torch.float64),
        )

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, in declaration order: what travels."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
