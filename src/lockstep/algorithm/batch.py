"""What is trained on in one iteration, cut in minibatches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["COLUMNS", "HEAD_COLUMNS", "Batch", "Part", "Pixels", "RowLayout", "resets"]

COLUMNS = 5
"""Last columns of a row: log-probability, advantage, value target, old value, weight."""
HEAD_COLUMNS = 2
"""Those before them, with two heads: the intrinsic value's target and old value."""


@dataclass(frozen=True)
class RowLayout:
    """What lies side by side in a row of W numbers: observation (normalized), action, what curiosity is to see, HEAD_COLUMNS with two heads,
    COLUMNS.
    """

    observed: int
    acted: int
    curious: int
    two_heads: bool

    @property
    def width(self) -> int:
        """W."""
        return self._end + HEAD_COLUMNS * self.two_heads + COLUMNS

    @property
    def _end(self) -> int:
        return self.observed + self.acted + self.curious

    def observations(self, rows: Tensor) -> Tensor:
        """`[K, O]`."""
        return rows[:, : self.observed]

    def actions(self, rows: Tensor) -> Tensor:
        """`[K, A]`."""
        return rows[:, self.observed : self.observed + self.acted]

    def columns(self, rows: Tensor) -> Tensor:
        """`[K, C]`, of curiosity."""
        return rows[:, self._end - self.curious : self._end]

    def second(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Target and old value of the second head, `[K]` each."""
        targets, values = rows[:, self._end : self._end + HEAD_COLUMNS].unbind(1)
        return targets, values


class Part(NamedTuple):
    """A shard's share of a minibatch: K = L × n steps, step 0 of n sequences, then step 1, …. Without memory L is 1."""

    rows: Tensor
    """`[K, W]`."""
    pixels: Tensor | None = None
    """`[K, P]` uint8, if there are images."""
    states: Tensor | None = None
    """`[n, S]`, if there is memory: what is remembered before step 0."""
    following: Tensor | None = None
    """`[K, P]`, what the steps led to, where that is asked for."""


def resets(rows: Tensor, count: int) -> Tensor:
    """`[L, count]` bool: which steps of `[L × count, W]` begin an episode, inside of a sequence. Those are the ones after reset rows."""
    lost = rows[:, -1].view(-1, count) == 0
    return torch.cat([torch.zeros_like(lost[:1]), lost[:-1]])


class Pixels:
    """The images of several shards where they are: they are too large to be copied for nothing."""

    def __init__(self, shards: Sequence[Tensor], count: int) -> None:
        """`[N + count, P]` each: `count` environments step by step, and at last those of the observations after the last step."""
        self._shards = shards
        self._count = count

    def __getitem__(self, at: Tensor) -> Tensor:
        """`[K]` numbers of rows, shard after shard, `N` each -> `[K, P]`."""
        return self._taken(at, 0)

    def following(self, at: Tensor) -> Tensor:
        """The same, of what these steps led to."""
        return self._taken(at, self._count)

    def _taken(self, at: Tensor, later: int) -> Tensor:
        rows = len(self._shards[0]) - self._count
        shard, row = at // rows, at % rows + later
        first = int(shard[0])
        if bool((shard == first).all()):  # as a part's always are, if data are not shared
            return self._shards[first].index_select(0, row)
        taken = self._shards[0].new_empty(len(at), self._shards[0].shape[1])
        for number, own in enumerate(self._shards):
            mine = (shard == number).nonzero().squeeze(1)
            taken.index_copy_(0, mine, own.index_select(0, row[mine]))
        return taken


@dataclass
class Batch:
    """What this rank trains on in one iteration: one part per shard or, fused, one for all, each cut in E × M minibatches of K
    samples.
    """

    rows: Tensor
    """`[R, W]`, of this rank's shards or, if data are shared, of all, side by side as in `RowLayout`, so that a whole epoch is shuffled by
    one operation."""
    order: Tensor
    """`[parts, E, M, K]`: which rows."""
    table: Tensor
    """`[E, M, 3]`: count, mean and deviation of every minibatch's advantages, over all ranks."""
    metrics: dict[str, float]
    pixels: Pixels | None = None
    """The images of the rows."""
    ahead: bool = False
    """Whether images of what steps led to are wanted too."""
    starts: Tensor | None = None
    """`[parts, E, M, n]`: which starting states, with memory."""
    remember: Callable[[int], Tensor] | None = None
    """The starting states `[R / L, S]` for an epoch, with memory."""

    def minibatches(self) -> Iterator[tuple[int, list[float], list[Part]]]:
        """Yields (epoch, [count, mean, deviation], parts)."""
        for epoch, statistics in enumerate(self.table.tolist()):
            # part by part: rows that lie in a tensor of their own are aligned alike on every rank
            shuffled = [self._shuffled(part[epoch]) for part in self.order]
            states = self._states(epoch)
            for number, numbers in enumerate(statistics):
                yield (
                    epoch,
                    numbers,
                    [
                        Part(
                            rows[number],
                            self._images(part, epoch, number),
                            None if states is None else states[part][number],
                            self._images(part, epoch, number, later=True) if self.ahead else None,
                        )
                        for part, rows in enumerate(shuffled)
                    ],
                )

    def _shuffled(self, order: Tensor) -> Sequence[Tensor]:
        """`[M, K]` -> M times `[K, W]`. Taking whole rows is some four times faster than indexing."""
        return self.rows.index_select(0, order.flatten()).view(*order.shape, -1).unbind(0)

    def _states(self, epoch: int) -> list[Sequence[Tensor]] | None:
        if self.remember is None or self.starts is None:
            return None
        known = self.remember(epoch)
        return [known[part[epoch]].unbind(0) for part in self.starts]

    def _images(self, part: int, epoch: int, number: int, later: bool = False) -> Tensor | None:
        if self.pixels is None:
            return None
        at = self.order[part, epoch, number].cpu()
        return (self.pixels.following(at) if later else self.pixels[at]).to(self.rows.device)
