"""What is trained on in one iteration, cut in minibatches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Batch", "Part", "Pixels", "resets"]


class Part(NamedTuple):
    """A shard's share of a minibatch: K = L × n steps, step 0 of n sequences, then step 1, …. Without memory L is 1."""

    rows: Tensor
    """`[K, W]`."""
    pixels: Tensor | None = None
    """`[K, P]` uint8, if there are images."""
    states: Tensor | None = None
    """`[n, S]`, if there is memory: what is remembered before step 0."""


def resets(rows: Tensor, count: int) -> Tensor:
    """`[L, count]` bool: which steps of `[L × count, W]` begin an episode, inside of a sequence. Those are the ones after reset rows."""
    lost = rows[:, -1].view(-1, count) == 0
    return torch.cat([torch.zeros_like(lost[:1]), lost[:-1]])


class Pixels:
    """The images of several shards where they are: they are too large to be copied for nothing."""

    def __init__(self, shards: Sequence[Tensor]) -> None:
        """`[N, P]` each."""
        self._shards = shards

    def __getitem__(self, at: Tensor) -> Tensor:
        """`[K]` numbers of rows, shard after shard -> `[K, P]`."""
        if len(self._shards) == 1:
            return self._shards[0][at]
        shard, row = at // len(self._shards[0]), at % len(self._shards[0])
        taken = self._shards[0].new_empty(len(at), self._shards[0].shape[1])
        for number, own in enumerate(self._shards):
            mine = shard == number
            taken[mine] = own[row[mine]]
        return taken


@dataclass
class Batch:
    """What this rank trains on in one iteration: one part per shard or, fused, one for all, each cut in E × M minibatches of K
    samples.
    """

    rows: Tensor
    """`[R, W]`, of this rank's shards or, if data are shared, of all: observation (normalized), action, log-probability,
    advantage, value target, old value, weight side by side, so that a whole epoch is shuffled by one operation."""
    order: Tensor
    """`[parts, E, M, K]`: which rows."""
    table: Tensor
    """`[E, M, 3]`: count, mean and deviation of every minibatch's advantages, over all ranks."""
    metrics: dict[str, float]
    pixels: Pixels | None = None
    """The images of the rows."""
    starts: Tensor | None = None
    """`[parts, E, M, n]`: which starting states, with memory."""
    remember: Callable[[int], Tensor] | None = None
    """The starting states `[R / L, S]` for an epoch, with memory."""

    def minibatches(self) -> Iterator[tuple[int, list[float], list[Part]]]:
        """Yields (epoch, [count, mean, deviation], parts)."""
        for epoch, statistics in enumerate(self.table.tolist()):
            # part by part: rows that lie in a tensor of their own are aligned alike on every rank
            shuffled = [self.rows[part[epoch]].unbind(0) for part in self.order]
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
                        )
                        for part, rows in enumerate(shuffled)
                    ],
                )

    def _states(self, epoch: int) -> list[Sequence[Tensor]] | None:
        if self.remember is None or self.starts is None:
            return None
        known = self.remember(epoch)
        return [known[part[epoch]].unbind(0) for part in self.starts]

    def _images(self, part: int, epoch: int, number: int) -> Tensor | None:
        return None if self.pixels is None else self.pixels[self.order[part, epoch, number].cpu()].to(self.rows.device)
