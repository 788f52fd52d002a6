"""Sequences cut where an episode begins, so that recurrent kernels run over pieces without resets."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["Packing"]


@dataclass(frozen=True)
class Packing:
    """`K` pieces of `N` sequences of length `L`, in the layout of PyTorch's packed sequences: the longest piece first, and the first
    rows of all pieces before the second ones. There is no padding: `L * N` rows before, as many after.
    """

    order: Tensor
    """`[L * N]`: which row of the sequences, counted time first, is a packed row."""
    places: Tensor
    """`[L * N]`: the inverse of `order`."""
    batch_sizes: Tensor
    """`[longest piece]`: number of pieces that have a row there. On the CPU, as PyTorch wants it."""
    origins: Tensor
    """`[K]`: the sequence whose starting state a piece continues, or `N`: its state is zero."""
    ends: Tensor
    """`[N]`: the piece that is last in each sequence."""

    @staticmethod
    def of(resets: Tensor) -> "Packing | None":
        """For resets `[L, N]`; None where no episode begins behind the first row, so that there is nothing to cut."""
        found = resets.cpu().numpy()
        if not found[1:].any():
            return None
        length, count = found.shape
        first = found.T.copy()  # whatever lies in time order within a sequence is one run of memory
        first[:, 0] = True
        piece = np.cumsum(first.reshape(-1)) - 1
        starts = np.flatnonzero(first)
        sizes = np.diff(starts, append=length * count)
        longest_first = np.argsort(-sizes, kind="stable")
        rank = np.empty_like(longest_first)
        rank[longest_first] = np.arange(len(sizes))
        position = np.arange(length * count) - starts[piece]
        taken = np.argsort(position * len(sizes) + rank[piece])
        order = taken % length * count + taken // length
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        origins = np.where((starts % length == 0) & ~found[0, starts // length], starts // length, count)
        arrays = (order, places, origins[longest_first], rank[piece[length - 1 :: length]])
        order, places, origins, ends = (torch.from_numpy(array).to(resets.device) for array in arrays)
        return Packing(order, places, torch.from_numpy(np.bincount(position)), origins, ends)

    def pack(self, rows: Tensor) -> Tensor:
        """`[L, N, …]` -> `[L * N, …]`."""
        return rows.flatten(0, 1).index_select(0, self.order)

    def unpack(self, rows: Tensor, like: Tensor) -> Tensor:
        """`[L * N, …]` -> `[L, N, …]`, `L` and `N` being those of `like`."""
        return rows.index_select(0, self.places).unflatten(0, like.shape[:2])

    def begin(self, state: Tensor) -> Tensor:
        """State of the sequences before their first row, `[N, S]` -> that of the pieces, `[K, S]`."""
        return torch.cat([state, state.new_zeros(1, state.shape[1])]).index_select(0, self.origins)

    def end(self, state: Tensor) -> Tensor:
        """State of the pieces after their last row, `[K, S]` -> that of the sequences, `[N, S]`."""
        return state.index_select(0, self.ends)
