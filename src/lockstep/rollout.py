"""Rollout buffer: the tensors that one shard collects in one iteration, which are sent from the player to the trainer.

Letters of shapes of rollouts: `T` steps, `B` environments of one shard, `O` observation size, `P` bytes of an
observation's images, `A` action size, `S` size of the state of a policy with memory, `L` steps of a sequence, `K` number
of `env.info_metrics`. Time is the first dimension. Row `t` holds the observation, the action taken on it, and the reward
and flags that the environment returned.

Episode ends follow one convention (next-step autoreset): the observation that the environment returns with
`terminated | truncated` is the last one of its episode, and the row that holds this observation is a reset row. Its
action is ignored, its reward is 0 and `valid` is False.

    t            0     1     2         3        4
    observation  o0    o1    o2        last     first of the next episode
    terminated   .     .     yes       .        .
    valid        yes   yes   yes       no       yes

An environment that fails and is replaced (`env.on_fault`) has zeros and `terminated` in that row, and `valid` is False in all rows of the unfinished
episode.

A rollout that ends early (`plan.preempt`) has zeros and repeated observations in the rows of the steps that were not taken, and `valid` is
False there. The episodes of its last step go on in the next rollout. Their values are bootstrapped from the observation after that step, as at the end of
a whole rollout.

An agent that is not in its game (engine `pettingzoo`) has `terminated` in every row until its next first observation, so all these rows are reset
rows. No episode ends in a reset row.

The state of a policy with memory is zero at the beginning of an episode: it is reset after a reset row.
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lockstep.phases import PHASES

__all__ = ["EPISODE_COLUMNS", "PLAYER_FIELDS", "Rollout", "Sizes"]

EPISODE_COLUMNS = 2
"""Number of columns of `Rollout.episodes`: return, length."""
PLAYER_FIELDS = ("stop", "iter", *PHASES)
"""Entries of `Rollout.status`: "stop" is the number of the signal that requested a stop, 0 if none did; "iter" are the seconds since its previous
rollout was complete; the others are the seconds of each phase."""
_ROWS = ("actions", "rewards", "terminated", "truncated", "valid", "log_probs", "episodes", "infos")
_ROWS_AND_NEXT = ("observations", "pixels", "values")


@dataclass(frozen=True)
class Sizes:
    """Sizes and type of the tensors in all rollouts of an experiment."""

    steps: int
    """Number of steps T."""
    count: int
    """Number of environments B of a shard."""
    observation: int
    """Observation size O."""
    action: int | None
    """Action size A; None for an action that is a single choice."""
    statistics: tuple[int, ...]
    """Number of normalized quantities of each kind: features, discounted return. Empty without normalization."""
    dtype: torch.dtype
    """Type of observations, rewards, values and other real numbers."""
    pixels: int = 0
    """Number P of bytes in the images of an observation."""
    state: int = 0
    """Size S of the state; 0 for a policy without memory."""
    sequence: int = 1
    """Sequence length L, a divisor of T."""
    infos: int = 0
    """Number K of `env.info_metrics`."""


@dataclass
class Rollout:
    """T steps of the B environments of a shard. All tensors are on the CPU and have the same shapes in all iterations."""

    observations: Tensor
    """Observations `[T + 1, B, O]` of the environments, not normalized. Row T is the first row of the next rollout."""
    pixels: Tensor
    """Images `[T + 1, B, P]` uint8, channels first."""
    states: Tensor
    """States `[T / L, B, S]` of the policy before steps 0, L, 2 L, …."""
    actions: Tensor
    """Actions `[T, B]` int64 if an action is a single choice, else `[T, B, A]` float: choices, then continuous
    components as sampled from the policy (not clipped, not squashed)."""
    rewards: Tensor
    """Rewards `[T, B]` of the environments, not normalized."""
    terminated: Tensor
    """Flags `[T, B]` bool: True if the action led to a terminal state, so that no value is bootstrapped."""
    truncated: Tensor
    """Flags `[T, B]` bool: True if the episode was cut, for example by a time limit, so that the value is bootstrapped."""
    valid: Tensor
    """Flags `[T, B]` bool: False for reset rows, for rows of episodes in which the environment failed, and for steps that were not taken.
    Losses and statistics ignore them."""
    values: Tensor
    """Values `[T + 1, B]` estimated by the critic, with the weights that collected the rollout."""
    log_probs: Tensor
    """Log-probabilities `[T, B]` of the actions, under the weights that collected the rollout."""
    statistics_sums: Tensor
    """Float64 sums over valid rows for the running statistics (`RunningStatistics.sums`): those of observations, then
    those of discounted returns, each only if it is normalized."""
    means: Tensor
    """Float64 means that were subtracted before the sums in `statistics_sums`."""
    episodes: Tensor
    """Return and length (steps) of the episode that ended at a row, `[T, B, 2]` float64; NaN if none ended there."""
    infos: Tensor
    """Numbers `[T, B, K]` float64 of `env.info_metrics` of the episode that ended at a row; NaN if none ended there."""
    faults: Tensor
    """Number `[B]` int64 of times that each environment has failed since the previous rollout."""
    taken: Tensor
    """Number `[1]` int64 of steps that were taken, T unless the rollout ended early."""
    status: Tensor
    """Stop request and times of the player, `[8]` float64, see `PLAYER_FIELDS`."""

    @staticmethod
    def specs(sizes: Sizes) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Return shape and type of every tensor, in declaration order."""
        rows, rows_and_next = (sizes.steps, sizes.count), (sizes.steps + 1, sizes.count)
        actions = (rows, torch.int64) if sizes.action is None else ((*rows, sizes.action), sizes.dtype)
        return [
            ((*rows_and_next, sizes.observation), sizes.dtype),
            ((*rows_and_next, sizes.pixels), torch.uint8),
            ((sizes.steps // sizes.sequence, sizes.count, sizes.state), sizes.dtype),
            actions,
            (rows, sizes.dtype),
            (rows, torch.bool),
            (rows, torch.bool),
            (rows, torch.bool),
            (rows_and_next, sizes.dtype),
            (rows, sizes.dtype),
            ((sum(1 + 2 * size for size in sizes.statistics),), torch.float64),
            ((sum(sizes.statistics),), torch.float64),
            ((*rows, EPISODE_COLUMNS), torch.float64),
            ((*rows, sizes.infos), torch.float64),
            ((sizes.count,), torch.int64),
            ((1,), torch.int64),
            ((len(PLAYER_FIELDS),), torch.float64),
        ]

    @classmethod
    def empty(cls, sizes: Sizes) -> "Rollout":
        """Allocate a rollout: zeros, all rows valid, and no episode that has ended."""
        # torch.zeros aligns to 64 bytes: with other alignments, some BLAS kernels round differently
        rollout = cls(*(torch.zeros(shape, dtype=dtype) for shape, dtype in cls.specs(sizes)))
        rollout.valid.fill_(True)
        rollout.taken.fill_(sizes.steps)
        rollout.episodes.fill_(torch.nan)
        return rollout

    def collected(self) -> "Rollout":
        """Return the rows of the steps that were taken, as views: the rollout itself unless it ended early. All `states` are kept."""
        taken = int(self.taken)
        if taken == len(self.rewards):
            return self
        rows = {name: tensor[:taken] for name, tensor in self.tensors().items() if name in _ROWS}
        rows |= {name: tensor[: taken + 1] for name, tensor in self.tensors().items() if name in _ROWS_AND_NEXT}
        return replace(self, **rows)

    @property
    def sequence_length(self) -> int:
        """Sequence length L."""
        return len(self.rewards) // len(self.states)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, in declaration order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
