"""Ways in which a group can add rows, and which one it chooses. This module does not import PyTorch.

Small rows are gathered: every rank adds all rows. Large rows are added in slices: each rank adds one slice of the columns. If there are several
hosts with several ranks, rows are added along a chain of hosts (`host_chain.py`).
"""

from collections.abc import Sequence

__all__ = [
    "BACKGROUND_BYTES",
    "MEMORY_ROWS",
    "MEMORY_ROW_BYTES",
    "NETWORK_BYTES",
    "PIECE",
    "chain_bytes",
    "in_slices",
    "in_slices_in_memory",
    "is_chain_faster",
]

NETWORK_BYTES = 2 << 20
"""Minimum size of all rows of a reduction between hosts, in bytes, for adding them in slices. There must be more than two rows."""
MEMORY_ROWS = 8
MEMORY_ROW_BYTES = 1 << 19
"""Minimum number of rows of a reduction in shared memory, and minimum size of a row in bytes, for adding them in slices."""

BACKGROUND_BYTES = 1 << 20
"""Minimum size of a row, in bytes, for a reduction between hosts that runs while the rank computes: a smaller one takes less time than the start of a thread."""

PIECE = 1 << 18
"""Bytes that a rank of a chain sends at once. While a host adds a piece, the next one arrives."""

_LATENCY, _MESSAGE, _BYTE = 80e-6, 60e-6, 0.8e-9
"""Seconds until a message arrives on another host, seconds of the processor per message, and seconds per byte, of 10 Gbit/s Ethernet."""


def in_slices(rows: int, row_bytes: int) -> bool:
    """Return True if `rows` rows of `row_bytes` bytes are added in slices between hosts."""
    return rows > 2 and rows * row_bytes >= NETWORK_BYTES


def in_slices_in_memory(rows: int, row_bytes: int) -> bool:
    """Return True if `rows` rows of `row_bytes` bytes are added in slices in shared memory."""
    return rows >= MEMORY_ROWS and row_bytes >= MEMORY_ROW_BYTES


def is_chain_faster(sizes: Sequence[int], rows: int, row_bytes: int) -> bool:
    """Return True if a chain of hosts adds `rows` rows in less time than a reduction without one. `sizes` are the numbers of ranks of the hosts.

    Without a chain, every rank has messages for every other one, and the largest host receives other rows, or slices, for each of its ranks.
    """
    ranks, largest = sum(sizes), max(sizes)
    if largest == 1 or len(sizes) == 1:
        return False
    slices = in_slices(rows, row_bytes)
    received = row_bytes * ((rows + ranks) / ranks if slices else rows) * (ranks - largest) / ranks
    alone = (2 if slices else 1) * 2 * (ranks - 1) * _MESSAGE + largest * received * _BYTE
    return 2 * (len(sizes) - 1) * (_LATENCY + _MESSAGE) + chain_bytes(sizes, row_bytes) * _BYTE < alone


def chain_bytes(sizes: Sequence[int], row_bytes: int) -> int:
    """Return the time that the bytes of a reduction along a chain take, as a number of bytes at the bandwidth of a host.

    That is one row, because both directions are used at the same time, and one piece of each rank for every host that a piece has passed before.
    """
    piece = min(row_bytes, PIECE * min(sizes))
    return row_bytes + (2 * len(sizes) - 3) * piece
