"""Argument parser of the commands: argparse, with errors of one line."""

import argparse
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

__all__ = ["Arguments", "parser_of", "whole_number"]


class _ParserFound(BaseException):
    """Carrier of a parser out of the function that made it."""

    def __init__(self, parser: "Arguments") -> None:
        self.parser = parser


_only_parsers = ContextVar("only parsers are wanted", default=False)


class Arguments(argparse.ArgumentParser):
    """ArgumentParser that raises ValueError with a message of one line, where argparse prints the usage and exits."""

    def __init__(self, command: str, description: str) -> None:
        """Create the parser of `lockstep COMMAND`. `description` is a sentence for `--help`."""
        super().__init__(f"lockstep {command}", description=description, allow_abbrev=False)

    def add_experiment(self) -> None:
        """Add the arguments PRESET and `--config`, which give the config that flags change."""
        self.add_argument("preset", nargs="?", metavar="PRESET", help="name of a preset; `lockstep presets` lists them")
        self.add_argument(
            "--config", type=Path, metavar="FILE", help="config file (.yaml, .json or .gin), which overrides the preset"
        )

    @property
    def actions(self) -> list[argparse.Action]:
        """Arguments and flags of the command, in their order in `--help`."""
        return self._actions

    @property
    def flags(self) -> list[str]:
        """Flags of the command, besides `--help`."""
        return [flag for action in self._actions for flag in action.option_strings if action.dest != "help"]

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments after the command.

        Raises ValueError if they are invalid; for an unknown flag, the message names the nearest flag.
        """
        if _only_parsers.get():
            raise _ParserFound(self)
        args, unknown = self.parse_known_args(argv)
        if unknown:
            flags = [flag for action in self._actions for flag in action.option_strings]
            close = get_close_matches(unknown[0].partition("=")[0], flags, 1) if unknown[0].startswith("-") else []
            hint = f"did you mean {close[0]}?" if close else f"see {self.prog} --help"
            problem = "unknown flag" if unknown[0].startswith("-") else "unexpected argument"
            raise ValueError(f"{unknown[0]}: {problem}; {hint}")
        return args

    def error(self, message: str) -> NoReturn:
        """Raise ValueError with argparse's message, reworded as one line. argparse calls this for every error."""
        missing = re.match(r"the following arguments are required: (.*)", message)
        if missing:
            message = f"{missing[1]} is missing; see {self.prog} --help"
        choice = re.match(r"argument ([^:]+): invalid choice: '(.*)' \(choose from (.*)\)$", message, re.DOTALL)
        if choice:
            flag, value, choices = choice[1], choice[2], re.findall(r"[\w.-]+", choice[3])
            close = get_close_matches(value, choices, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            message = f"{flag} is {value!r}: it must be one of {', '.join(choices)}{hint}"
        message = re.sub(
            r"^argument ([^:]+): not allowed with argument (.*)$", r"\1 can't be combined with \2", message
        )
        message = re.sub(r"^argument ([^:]+): expected one argument$", r"\1 needs a value", message)
        message = re.sub(r"^argument ([^:]+): expected (\d+) arguments$", r"\1 needs \2 values", message)
        raise ValueError(re.sub(r"^argument ([^:]+):", r"\1", message))


def parser_of(main: Callable[[Sequence[str]], int]) -> Arguments:
    """Return the parser that the `main` of a command makes, without running the command."""
    token = _only_parsers.set(True)
    try:
        main([])
    except _ParserFound as found:
        return found.parser
    finally:
        _only_parsers.reset(token)
    raise AssertionError("the command made no parser")


def whole_number(low: int) -> Callable[[str], int]:
    """Return a function for `type=` that parses a whole number of at least `low`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low:
            raise argparse.ArgumentTypeError(f"is {text!r}: it must be a whole number, at least {low}")
        return number

    return parse
