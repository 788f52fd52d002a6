"""The training data of one iteration, cut into minibatches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Batch", "ImageRows", "Microbatch", "Minibatch", "RowLayout", "RowScalars", "row_weights", "sequence_resets"]

_INTRINSIC_COLUMNS = 2
_INTRINSIC_NAMES = ("the intrinsic value target", "the old intrinsic value estimate")
_SCALAR_NAMES = (
    *("the log-probability of the action", "the advantage", "the value target", "the old value estimate"),
    "the weight",
)
"""Names of the last columns, in messages."""


class RowScalars(NamedTuple):
    """The last columns of a packed row, each `[K]`."""

    log_probs: Tensor
    """Log-probabilities of the actions under the old policy."""
    advantages: Tensor
    value_targets: Tensor
    values: Tensor
    """Old value estimates."""
    weights: Tensor
    """1 for steps that count, 0 for reset rows."""


@dataclass(frozen=True)
class RowLayout:
    """The columns of a packed row of W numbers: observation (normalized), action, curiosity inputs, with two value heads the target
    and old value of the intrinsic one, and `RowScalars`.
    """

    observation_size: int
    action_size: int
    curiosity_size: int
    two_heads: bool

    @property
    def width(self) -> int:
        """The number of columns, W."""
        return self._inputs_end + _INTRINSIC_COLUMNS * self.two_heads + len(RowScalars._fields)

    @property
    def _actions_end(self) -> int:
        return self.observation_size + self.action_size

    @property
    def _inputs_end(self) -> int:
        return self._actions_end + self.curiosity_size

    def observations(self, rows: Tensor) -> Tensor:
        """Return the observations `[K, O]` of rows `[K, W]`."""
        return rows[:, : self.observation_size]

    def actions(self, rows: Tensor) -> Tensor:
        """Return the actions `[K, A]` of rows `[K, W]`."""
        return rows[:, self.observation_size : self._actions_end]

    def curiosity_inputs(self, rows: Tensor) -> Tensor:
        """Return the inputs `[K, C]` of the curiosity loss."""
        return rows[:, self._actions_end : self._inputs_end]

    def intrinsic_values(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return targets and old values of the intrinsic value head, `[K]` each."""
        targets, values = rows[:, self._inputs_end : self._inputs_end + _INTRINSIC_COLUMNS].unbind(1)
        return targets, values

    def column_name(self, column: int) -> str:
        """Return the name of a column, for a message."""
        if column < self.observation_size:
            return f"column {column} of the observations"
        if column < self._actions_end:
            return f"column {column - self.observation_size} of the actions"
        if column < self._inputs_end:
            return f"input {column - self._actions_end} of the curiosity loss"
        names = [*_INTRINSIC_NAMES[: _INTRINSIC_COLUMNS * self.two_heads], *_SCALAR_NAMES]
        return names[column - self._inputs_end]

    def set_estimates(self, rows: Tensor, estimates: Tensor) -> None:
        """Write advantages, value targets and, with two value heads, targets of the intrinsic head, `[K, 2]` or `[K, 3]`, into rows."""
        advantages, targets, *intrinsic = estimates.unbind(1)
        scalars = self.scalars(rows)
        scalars.advantages.copy_(advantages)
        scalars.value_targets.copy_(targets)
        if self.two_heads:
            self.intrinsic_values(rows)[0].copy_(intrinsic[0])

    @staticmethod
    def scalars(rows: Tensor) -> RowScalars:
        """Return the last columns of rows `[K, W]` by name."""
        return RowScalars(*rows[:, -len(RowScalars._fields) :].unbind(-1))


def row_weights(rows: Tensor) -> Tensor:
    """Return the weights `[…]` of rows `[…, W]`: 0 for reset rows."""
    return rows[..., -1]


def sequence_resets(rows: Tensor, count: int) -> Tensor:
    """Return, as `[L, count]` bool, which steps of `count` sequences `[L × count, W]` begin an episode: those after reset rows."""
    reset_rows = row_weights(rows).view(-1, count) == 0
    return torch.cat([torch.zeros_like(reset_rows[:1]), reset_rows[:-1]])


class Microbatch(NamedTuple):
    """A shard's share of a minibatch: K = L × n steps, step 0 of n sequences, then step 1, and so on. Without memory L is 1."""

    rows: Tensor
    """`[K, W]`, see `RowLayout`."""
    pixels: Tensor | None = None
    """`[K, P]` uint8, if observations contain images."""
    states: Tensor | None = None
    """`[n, S]`, for a policy with memory: its state before step 0."""
    next_pixels: Tensor | None = None
    """`[K, P]`, images of the next observations, if the curiosity loss needs them."""


class Minibatch(NamedTuple):
    """One minibatch of an update."""

    epoch: int
    number: int
    """Index within the epoch."""
    samples: float
    """The number of valid rows, over all ranks."""
    microbatches: list[Microbatch]


class ImageRows:
    """Images of several shards, indexed by row without being concatenated: a copy would take too much memory and time."""

    def __init__(self, shards: Sequence[Tensor], count: int) -> None:
        """Wrap the images of each shard, `[N + count, P]`, on any device: N rows of `count` environments, then the final observations."""
        self._shards = shards
        self._count = count

    def __getitem__(self, numbers: Tensor) -> Tensor:
        """Return images `[K, P]` of rows `[K]`, on the CPU, which are numbered over all shards, N per shard."""
        return self._gather(numbers, 0)

    def next(self, numbers: Tensor) -> Tensor:
        """Return the images `[K, P]` of the observations that follow rows `[K]`."""
        return self._gather(numbers, self._count)

    def _gather(self, numbers: Tensor, offset: int) -> Tensor:
        rows = len(self._shards[0]) - self._count
        shards, places = numbers // rows, numbers % rows + offset
        first = int(shards[0])
        if bool((shards == first).all()):  # always so for a microbatch of a minibatch, unless data are shared
            return self._shards[first].index_select(0, places.to(self._shards[first].device))
        gathered = self._shards[0].new_empty(len(numbers), self._shards[0].shape[1])
        for number, images in enumerate(self._shards):
            selected = (shards == number).nonzero().squeeze(1)
            chosen = images.index_select(0, places[selected].to(images.device))
            gathered.index_copy_(0, selected.to(images.device), chosen)
        return gathered


@dataclass
class Batch:
    """The training data of this rank in one iteration: one microbatch per shard or, if shards are fused, one for all, each cut into E × M
    minibatches of K samples.
    """

    rows: Tensor
    """`[R, W]`, of this rank's shards or, if data are shared, of all shards, in one tensor, so that one operation shuffles a whole epoch."""
    order: Tensor
    """`[microbatches, E, M, K]`: row numbers."""
    advantage_statistics: Tensor
    """`[E, M, 3]`: count, mean and standard deviation of every minibatch's advantages, over all ranks."""
    metrics: dict[str, float]
    pixels: ImageRows | None = None
    """The images of the rows."""
    needs_next_pixels: bool = False
    """True if the loss needs images of next observations."""
    sequence_numbers: Tensor | None = None
    """`[microbatches, E, M, n]`: numbers of the sequences, and so of their initial states, for a policy with memory."""
    initial_states: Callable[["Batch", int], Tensor] | None = None
    """Function from this batch and an epoch to the initial states `[R / L, S]` of all sequences, for a policy with memory."""
    recompute: Callable[["Batch", int], None] | None = None
    """Function of this batch and an epoch that recomputes the advantages and value targets of the rows with the current weights, and the
    statistics of the minibatches of the epoch (`ppo.recompute_advantages`)."""

    def begin_epoch(self, epoch: int) -> None:
        """Recompute advantages and `advantage_statistics`, if the config says so; to be called before `minibatches_of`."""
        if epoch > 0 and self.recompute is not None:
            self.recompute(self, epoch)

    def minibatches_of(self, epoch: int) -> Iterator[Minibatch]:
        """Iterate over the minibatches of an epoch."""
        # a tensor of its own per microbatch: its rows then have the same memory alignment on every rank
        # selecting whole rows is about four times faster than indexing
        selected = [self.rows.index_select(0, microbatch[epoch].flatten()) for microbatch in self.order]
        shuffled = [rows.view(*self.order.shape[2:], -1).unbind(0) for rows in selected]
        states = self._states(epoch)
        for number, count in enumerate(self.advantage_statistics[epoch][:, 0].tolist()):
            microbatches = [
                Microbatch(
                    rows[number],
                    self._images(microbatch, epoch, number),
                    None if states is None else states[microbatch][number],
                    self._images(microbatch, epoch, number, following=True) if self.needs_next_pixels else None,
                )
                for microbatch, rows in enumerate(shuffled)
            ]
            yield Minibatch(epoch, number, count, microbatches)

    def _states(self, epoch: int) -> list[Sequence[Tensor]] | None:
        if self.initial_states is None or self.sequence_numbers is None:
            return None
        states = self.initial_states(self, epoch)
        return [states[microbatch[epoch]].unbind(0) for microbatch in self.sequence_numbers]

    def _images(self, microbatch: int, epoch: int, number: int, following: bool = False) -> Tensor | None:
        if self.pixels is None:
            return None
        numbers = self.order[microbatch, epoch, number].cpu()
        images = self.pixels.next(numbers) if following else self.pixels[numbers]
        return images.to(self.rows.device)
