"""Sizes from which on a reduction is added in slices: every rank adds one slice of the columns. This module does not import PyTorch."""

__all__ = ["MEMORY_ROWS", "MEMORY_ROW_BYTES", "NETWORK_BYTES"]

NETWORK_BYTES = 2 << 20
"""Bytes of all rows of a reduction between hosts, if there are more than two rows."""
MEMORY_ROWS = 8
MEMORY_ROW_BYTES = 1 << 19
"""Number of rows of a reduction in shared memory, and bytes of a row."""
