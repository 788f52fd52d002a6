"""Running mean and variance, exact over any number of ranks."""

import numpy as np
import torch
from torch import Tensor

__all__ = ["RunningStatistics"]

_BLOCK, _CELLS = 1024, 2**20
"""Rows and numbers that are summed at a time at most, so that their deviations stay in the cache."""


class RunningStatistics:
    """Count, mean and sum of squared deviations of `[size]` quantities, in float64.

    They are frozen while a rollout is collected. Afterwards every shard contributes `sums` about the frozen mean, the shards'
    sums are added in order, and `merge` takes the total in: the result does not depend on who collected what. Sums about a
    mean, not about zero, keep the variance accurate when the mean is large (Chan, Golub & LeVeque 1979). Players may be an update
    behind, so `merge` is told which mean it was.
    """

    def __init__(self, size: int) -> None:
        # on the CPU in a context of another device too
        self.count = torch.zeros(1, dtype=torch.float64, device="cpu")
        self.mean = torch.zeros(size, dtype=torch.float64, device="cpu")
        self.squares = torch.zeros(size, dtype=torch.float64, device="cpu")

    @staticmethod
    def width(size: int) -> int:
        """Length of `sums` for `size` quantities."""
        return 1 + 2 * size

    def sums(self, rows: Tensor, valid: Tensor) -> Tensor:
        """`[1 + 2 size]`: count, sum and sum of squares of the deviations from the present mean.

        Args:
            rows: `[N, size]`.
            valid: `[N]` bool: which rows count.
        """
        data, mean, counted = rows.numpy(), self.mean.numpy(), valid.numpy()
        weights, found = valid.to(torch.float64).numpy(), np.zeros((2, len(mean)))
        # torch aligns alike in every process: some BLAS kernels round differently on other alignments
        block = min(_BLOCK, len(data), max(1, _CELLS // max(1, len(mean))))
        room = torch.empty(block, len(mean), dtype=torch.float64).numpy()
        with np.errstate(all="ignore"):  # what is not finite is found in the loss, on all ranks at once
            for start in range(0, len(data), block):
                at = slice(start, start + block)
                deviations = np.subtract(data[at], mean, out=room[: len(data[at])])
                deviations[~counted[at]] = 0  # weight 0 alone would not keep a NaN out
                found[0] += weights[at] @ deviations
                found[1] += weights[at] @ np.square(deviations, out=deviations)
        return torch.from_numpy(np.concatenate([[weights.sum()], *found]))

    def merge(self, sums: Tensor, about: Tensor) -> None:
        """Takes in the total of all shards' `sums`, which were made about the mean `about`, `[size]`."""
        size = self.mean.numel()
        count, first, second = sums[:1], sums[1 : 1 + size], sums[1 + size :]
        total = self.count + count
        if total.item() == 0:
            return
        moved = self.mean - about
        second = second - 2 * moved * first + count * moved.square()
        first = first - count * moved
        shift = first / total
        self.squares = self.squares + second - total * shift.square()
        self.mean = self.mean + shift
        self.count = total

    @property
    def std(self) -> Tensor:
        """`[size]` standard deviation; 1 before anything was merged."""
        if self.count.item() == 0:
            return torch.ones_like(self.mean)
        return (self.squares / self.count).clamp_min(0).add(1e-8).sqrt()

    def state(self) -> dict[str, Tensor]:
        """All that a checkpoint needs, by name."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load(self, state: dict[str, Tensor]) -> None:
        """Takes back `state()`."""
        self.count, self.mean, self.squares = (state[name].clone() for name in ("count", "mean", "squares"))
