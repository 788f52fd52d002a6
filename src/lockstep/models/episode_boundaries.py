"""Sequences with rows put in that make a recurrent kernel forget.

PyTorch's kernels for sequences know nothing of episodes that begin in the middle. But a gate that is closed far enough is 0 to the last
bit, and so is its derivative: before each row that begins an episode goes one more, of a kind that no observation has, in which all
gates close and the state becomes zero. So sequences stay whole and of one length, which is what the fast kernels are made for: an LSTM
trains two to nine times as fast on a CPU as one that is given pieces of many lengths.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["CLOSED", "MARKS", "EpisodeBoundaries"]

CLOSED = -1e6
"""What closes a gate, whatever else it is given."""
MARKS = 3
"""Columns that tell the kinds of rows apart: a usual one, one that forgets, one that keeps the state."""


@dataclass(frozen=True)
class EpisodeBoundaries:
    """Where the rows of `N` sequences of length `L` go in longer ones of length `M`, `L` and the most episodes that begin in one.
    Sequences in which fewer begin are filled up at their end by rows that keep the state.
    """

    order: Tensor
    """`[M * N]`: the row, counted time first, that comes to this place; `L * N` and behind: none."""
    places: Tensor
    """`[L * N]`: where each row is."""
    marks: Tensor
    """`[M, N, MARKS]`: 1 in the column of a row's kind."""

    @staticmethod
    def of(resets: Tensor, dtype: torch.dtype) -> "EpisodeBoundaries | None":
        """For resets `[L, N]`; None where no episode begins behind the first row, and so nothing is to be put in."""
        begins = resets.cpu().numpy().copy()
        begins[0] = False
        if not begins.any():
            return None
        length, count = begins.shape
        times = begins.cumsum(0) + np.arange(length)[:, None]
        places = times * count + np.arange(count)
        kinds = np.full((int(times[-1].max()) + 1) * count, 2)
        kinds[places[begins] - count] = 1
        kinds[places] = 0
        order = np.full(len(kinds), length * count)
        order[places] = np.arange(length * count).reshape(length, count)
        marks = np.eye(MARKS)[kinds].reshape(-1, count, MARKS)
        device = resets.device
        return EpisodeBoundaries(
            torch.from_numpy(order).to(device),
            torch.from_numpy(places.reshape(-1)).to(device),
            torch.from_numpy(marks).to(device, dtype),
        )

    def spread(self, rows: Tensor) -> Tensor:
        """`[L, N, I]` -> `[M, N, I]`, zeros in what is put in."""
        filled = torch.cat([rows.flatten(0, 1), rows.new_zeros(1, rows.shape[2])])
        return filled.index_select(0, self.order).view(-1, *rows.shape[1:])

    def gather(self, rows: Tensor) -> Tensor:
        """`[M, N, H]` -> `[L, N, H]`."""
        return rows.flatten(0, 1).index_select(0, self.places).view(-1, *rows.shape[1:])

    def last(self, rows: Tensor) -> Tensor:
        """`[M, N, H]` -> `[N, H]`, the last row of each sequence."""
        return rows.flatten(0, 1).index_select(0, self.places[-rows.shape[1] :])
