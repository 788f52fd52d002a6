"""Parts of messages: errors as one line, and numbers with a noun."""

__all__ = ["counted", "one_line"]


def one_line(error: BaseException) -> str:
    """Return the message of an error as one line; the name of its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def counted(number: int, noun: str) -> str:
    """Return a number and a noun, which is in the plural unless the number is 1: `1 rank`, `1,200 steps`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
