"""Messages: errors as one line, numbers with a noun, and lines on stderr."""

import sys
from contextlib import suppress

__all__ = ["counted", "one_line", "print_warning"]


def print_warning(line: str) -> None:
    """Print a line on stderr, if that is possible: stderr may be a file on a full disk."""
    with suppress(OSError):
        print(f"lockstep: {line}", file=sys.stderr, flush=True)


def one_line(error: BaseException) -> str:
    """Return the message of an error as one line; the name of its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def counted(number: int, noun: str) -> str:
    """Return a number and a noun, which is in the plural unless the number is 1: `1 rank`, `1,200 steps`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
