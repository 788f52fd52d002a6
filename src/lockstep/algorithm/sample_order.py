"""The order in which samples are drawn: permutations of sequences, and the rows of which they consist."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.randomness import stream

__all__ = ["SampleOrder", "sequence_rows"]


class SampleOrder:
    """Draws the permutations of one rank's shards. They depend on seed, shard and iteration, never on the rank."""

    def __init__(self, seed: int, shards: Sequence[int], epochs: int, minibatches: int) -> None:
        """`shards` are the indices of this rank's shards, ascending; E is `epochs` and M is `minibatches`."""
        self._seed = seed
        self._shards = shards
        self._epochs = epochs
        self._minibatches = minibatches

    def separate(self, iteration: int, count: int) -> Tensor:
        """Permute the `count` sequences of each shard in every epoch. Returns numbers `[shards, E, M, n]` of sequences."""
        permutations = []
        for index, shard in enumerate(self._shards):
            generator = stream(self._seed, "minibatches", shard, iteration)
            permutations += [generator.permutation(count) + index * count for _ in range(self._epochs)]
        stacked = torch.stack([torch.from_numpy(permutation) for permutation in permutations])
        return stacked.view(len(self._shards), self._epochs, self._minibatches, -1)

    def shared(self, iteration: int, count: int, shards: int) -> Tensor:
        """Permute the sequences of all `shards`, `count` in total, together. Minibatch m is slice m of the permutation.

        Each shard takes an equal slice of a minibatch, so shapes and the order of sums are the same for any number of ranks. Returns
        the slices of this rank's shards, `[own shards, E, M, n]`.
        """
        generator = stream(self._seed, "shared-minibatches", iteration)
        shape, shard_indices = (self._minibatches, shards, -1), list(self._shards)
        epochs = [
            torch.from_numpy(generator.permutation(count)).view(shape)[:, shard_indices] for _ in range(self._epochs)
        ]
        return torch.stack(epochs).permute(2, 0, 1, 3)


def sequence_rows(sequences: Tensor, length: int, count: int) -> Tensor:
    """Convert sequence numbers `[…, n]` to the numbers of their rows `[…, L × n]`: step 0 of all sequences, then step 1, and so on.

    The rows of a shard are `[T, B]`, its sequences `[T / L, B]`; `length` is L and `count` is B.
    """
    first = sequences // count * (length * count) + sequences % count
    return (first.unsqueeze(-2) + count * torch.arange(length).unsqueeze(-1)).flatten(-2)
