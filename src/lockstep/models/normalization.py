"""Running mean and variance, with the same result for any number of ranks."""

import numpy as np
import torch
from torch import Tensor

__all__ = ["RunningStatistics"]

_BLOCK, _CELLS = 1024, 2**20
"""Largest numbers of rows and of values that are summed at a time, so that their deviations stay in the cache."""


class RunningStatistics:
    """Running count, mean and sum of squared deviations of `[size]` quantities, in float64.

    The statistics do not change while a rollout is collected. Afterwards each shard computes its `sums` of deviations
    from the frozen mean, the sums are added in the order of the shards, and `merge` adds the total to the statistics:
    the result does not depend on which rank collected which shard. Deviations from a mean, not from zero, keep the
    variance accurate when the mean is large (Chan, Golub & LeVeque 1979). The weights of a player may be one update
    old, so `merge` needs the mean that the player used.
    """

    def __init__(self, size: int) -> None:
        # device="cpu": the default device may be another one
        self.count = torch.zeros(1, dtype=torch.float64, device="cpu")
        self.mean = torch.zeros(size, dtype=torch.float64, device="cpu")
        self.squares = torch.zeros(size, dtype=torch.float64, device="cpu")

    @staticmethod
    def width(size: int) -> int:
        """Return the length of `sums` for `size` quantities."""
        return 1 + 2 * size

    def sums(self, rows: Tensor, valid: Tensor) -> Tensor:
        """Return the count, sum and sum of squares of the deviations from the current mean, `[1 + 2 size]`.

        `rows` are `[N, size]`; those where `valid` `[N]` is False are not counted.
        """
        data, mean, counted = rows.numpy(), self.mean.numpy(), valid.numpy()
        totals = np.zeros((2, len(mean)))
        block = min(_BLOCK, len(data), max(1, _CELLS // max(1, len(mean))))
        buffer = np.empty((block, len(mean)))
        with np.errstate(all="ignore"):  # values that are not finite are found in the loss, on all ranks at once
            for start in range(0, len(data), block):
                block_rows = slice(start, start + block)
                deviations = np.subtract(data[block_rows], mean, out=buffer[: len(data[block_rows])])
                deviations[~counted[block_rows]] = 0
                # no matrix product: the order in which BLAS adds depends on the processor
                totals[0] += deviations.sum(0)
                totals[1] += np.square(deviations, out=deviations).sum(0)
        return torch.from_numpy(np.concatenate([[counted.sum()], *totals]))

    def merge(self, sums: Tensor, about: Tensor) -> None:
        """Add the total of all shards' `sums`, of deviations from the mean `about` `[size]`.

        A total of 0 rows is ignored, and so is one that is not finite: after it, no row could be normalized any more.
        """
        size = self.mean.numel()
        count, first, second = sums[:1], sums[1 : 1 + size], sums[1 + size :]
        total = self.count + count
        if total.item() == 0 or not bool(sums.isfinite().all()):
            return
        mean_change = self.mean - about
        second = second - 2 * mean_change * first + count * mean_change.square()
        first = first - count * mean_change
        shift = first / total
        self.squares = self.squares + second - total * shift.square()
        self.mean = self.mean + shift
        self.count = total

    @property
    def std(self) -> Tensor:
        """Standard deviation `[size]`; 1 before the first rows are merged."""
        if self.count.item() == 0:
            return torch.ones_like(self.mean)
        return (self.squares / self.count).clamp_min(0).add(1e-8).sqrt()

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint saves, by name."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore the statistics from the result of `state()`."""
        self.count, self.mean, self.squares = (state[name].clone() for name in ("count", "mean", "squares"))
