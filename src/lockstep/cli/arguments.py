"""Command lines of verbs: argparse, with errors of one line."""

import argparse
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import NoReturn

__all__ = ["Arguments", "whole_number"]


class Arguments(argparse.ArgumentParser):
    """An ArgumentParser that raises ValueError, in one line, where argparse prints usage and exits."""

    def __init__(self, verb: str, does: str) -> None:
        """`does` says in a sentence what the verb does."""
        super().__init__(f"lockstep {verb}", description=does, allow_abbrev=False)

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """`parse_args`, naming the nearest flag for an unknown one."""
        own, rest = self.parse_known_args(argv)
        if rest:
            known = [flag for action in self._actions for flag in action.option_strings]
            close = get_close_matches(rest[0].partition("=")[0], known, 1) if rest[0].startswith("-") else []
            hint = f"did you mean {close[0]}?" if close else f"see {self.prog} --help"
            raise ValueError(f"{rest[0]}: {'unknown flag' if rest[0].startswith('-') else 'one word too many'}; {hint}")
        return own

    def error(self, message: str) -> NoReturn:
        """Raises ValueError."""
        missing = re.match(r"the following arguments are required: (.*)", message)
        if missing:
            message = f"{missing[1]} is missing; see {self.prog} --help"
        choice = re.match(r"argument ([^:]+): invalid choice: '(.*)' \(choose from (.*)\)$", message, re.DOTALL)
        if choice:
            flag, given, known = choice[1], choice[2], re.findall(r"[\w.-]+", choice[3])
            close = get_close_matches(given, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            message = f"{flag} is {given!r}: it must be one of {', '.join(known)}{hint}"
        message = re.sub(r"^argument ([^:]+): expected one argument$", r"\1 needs a value", message)
        message = re.sub(r"^argument ([^:]+): expected (\d+) arguments$", r"\1 needs \2 values", message)
        raise ValueError(re.sub(r"^argument ([^:]+):", r"\1", message))


def whole_number(low: int) -> Callable[[str], int]:
    """For `type=`: reads a whole number that is at least `low`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low:
            raise argparse.ArgumentTypeError(f"is {text!r}: it must be a whole number, at least {low}")
        return number

    return read
