"""Marker rows inside sequences, which clear the state of a recurrent kernel at the start of an episode.

PyTorch's kernels for sequences cannot reset the state in the middle of a sequence. But a gate whose input is low enough
is exactly 0, and so is its derivative. Therefore one extra row with a mark of its own is inserted before each row
that begins an episode: in this row all gates close and the state becomes zero. So sequences are not cut and keep
one length, the case for which the kernels are fast: on a CPU an LSTM trains two to nine times as fast as on pieces of
many lengths.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["CLOSED", "MARKS", "EpisodeBoundaries"]

CLOSED = -1e6
"""Bias that closes a gate whatever its other inputs are."""
MARKS = 3
"""Number of columns that mark the kind of a row: an ordinary row, a row that clears the state, a row that keeps it."""


@dataclass(frozen=True)
class EpisodeBoundaries:
    """Positions of the rows of `N` sequences of length `L` in sequences of length `M` with inserted rows.

    `M` is `L` plus the largest number of episodes that begin in one sequence after its first row. Sequences in which
    fewer episodes begin are padded at their end with rows that keep the state.
    """

    order: Tensor
    """Index `[M * N]` of the original row, counted time first, at each position; `L * N` for an inserted row."""
    places: Tensor
    """Position `[L * N]` of each original row."""
    marks: Tensor
    """Kind of each row, one-hot `[M, N, MARKS]`."""

    @staticmethod
    def from_resets(resets: Tensor, dtype: torch.dtype) -> "EpisodeBoundaries | None":
        """Create the boundaries for resets, bool `[L, N]`; None if no episode begins after the first row."""
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

    def insert_marker_rows(self, rows: Tensor) -> Tensor:
        """Insert rows of zeros: `[L, N, I]` -> `[M, N, I]`."""
        with_zeros = torch.cat([rows.flatten(0, 1), rows.new_zeros(1, rows.shape[2])])
        return with_zeros.index_select(0, self.order).view(-1, *rows.shape[1:])

    def remove_marker_rows(self, rows: Tensor) -> Tensor:
        """Remove the inserted rows: `[M, N, H]` -> `[L, N, H]`."""
        return rows.flatten(0, 1).index_select(0, self.places).view(-1, *rows.shape[1:])

    def last_rows(self, rows: Tensor) -> Tensor:
        """Return the last original row of each sequence: `[M, N, H]` -> `[N, H]`."""
        return rows.flatten(0, 1).index_select(0, self.places[-rows.shape[1] :])
