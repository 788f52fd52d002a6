"""Warnings about a running experiment."""

import sys
from contextlib import suppress

__all__ = ["print_warning"]


def print_warning(line: str) -> None:
    """Print a line on stderr, if that is possible: stderr may be a file on a full disk."""
    with suppress(OSError):
        print(f"lockstep: {line}", file=sys.stderr, flush=True)
