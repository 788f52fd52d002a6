"""The tensors that travel: what one shard collected in one iteration.

Shape letters, used everywhere: `T` steps, `B` environments of one shard, `O` observation size, `P` bytes of an observation's images,
`A` action size, `S` numbers that a policy with memory carries along, `L` steps of a sequence. Time comes first. Row `t` holds the
observation, the action taken on it, and what the environment answered.

Episode ends follow one convention (next-step autoreset): the observation after `terminated | truncated` is the last one of
its episode; the row that starts from it is a reset row. Its action is ignored, its reward is 0 and `valid` is False.

    t            0     1     2         3        4
    observation  o0    o1    o2        last     first of the next episode
    terminated   .     .     yes       .        .
    valid        yes   yes   yes       no       yes

What a policy remembers is zero where an episode begins, so it is forgotten after a reset row.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

__all__ = ["EPISODE_COLUMNS", "STATUS", "Rollout", "Sizes"]

EPISODE_COLUMNS = 2
"""Columns of `Rollout.episodes`: return, length."""
STATUS = ("stop", "iter", "rollout", "learn", "sync", "wait", "publish", "record")
"""Entries of `Rollout.status`: whether the player was asked to stop, and its seconds since its last rollout was done, whole and by
phase."""


@dataclass(frozen=True)
class Sizes:
    """Of all rollouts of an experiment."""

    steps: int
    """T."""
    count: int
    """B."""
    observation: int
    """O."""
    action: int | None
    """A; None for an action that is one choice."""
    moments: tuple[int, ...]
    """Number of quantities of each kind that moments are kept of."""
    dtype: torch.dtype
    """Of real numbers."""
    pixels: int = 0
    """P."""
    state: int = 0
    """S; 0 without memory."""
    sequence: int = 1
    """L, which divides T."""


@dataclass
class Rollout:
    """One shard's T steps in B environments. All tensors live on the CPU and keep their shape from one iteration to the next."""

    observations: Tensor
    """`[T + 1, B, O]`, as the environments gave them (not normalized); row T is what the next rollout starts from."""
    pixels: Tensor
    """`[T + 1, B, P]` uint8: images, channels first."""
    states: Tensor
    """`[T / L, B, S]`: what the policy remembered before steps 0, L, 2 L, …."""
    actions: Tensor
    """`[T, B]` int64 for an action that is one choice, else `[T, B, A]` float: choices, then continuous components as the policy drew them
    (not clipped, not squashed)."""
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
    """Float64 sums over valid rows, see `RunningStatistics.sums`: observations (if normalized), then discounted returns (if normalized)."""
    means: Tensor
    """Float64 means that `moments` are about."""
    episodes: Tensor
    """`[T, B, 2]` float64: return and length (steps) of the episode that ended at this row; NaN where none did."""

    status: Tensor
    """`[8]` float64: what the player has to say for itself, see `STATUS`."""

    @staticmethod
    def specs(sizes: Sizes) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of every tensor, in declaration order."""
        rows, ahead, flag = (sizes.steps, sizes.count), (sizes.steps + 1, sizes.count), torch.bool
        actions = (rows, torch.int64) if sizes.action is None else ((*rows, sizes.action), sizes.dtype)
        return [
            ((*ahead, sizes.observation), sizes.dtype),
            ((*ahead, sizes.pixels), torch.uint8),
            ((sizes.steps // sizes.sequence, sizes.count, sizes.state), sizes.dtype),
            actions,
            (rows, sizes.dtype),
            (rows, flag),
            (rows, flag),
            (rows, flag),
            (ahead, sizes.dtype),
            (rows, sizes.dtype),
            ((sum(1 + 2 * size for size in sizes.moments),), torch.float64),
            ((sum(sizes.moments),), torch.float64),
            ((*rows, EPISODE_COLUMNS), torch.float64),
            ((len(STATUS),), torch.float64),
        ]

    @classmethod
    def empty(cls, sizes: Sizes) -> "Rollout":
        """Allocates a rollout."""
        # torch aligns to 64 bytes: some BLAS kernels round differently on other alignments
        rollout = cls(*(torch.zeros(shape, dtype=kind) for shape, kind in cls.specs(sizes)))
        rollout.valid.fill_(True)
        rollout.episodes.fill_(torch.nan)
        return rollout

    @property
    def sequence_length(self) -> int:
        """L."""
        return len(self.rewards) // len(self.states)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, in declaration order: what travels."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
