"""Argument parser of the commands: argparse, with errors of one line."""

import argparse
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from lockstep.runtime.settings import RESTARTS

__all__ = ["Arguments", "is_on_cluster", "parser_of", "rank_range", "whole_number"]


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

    def add_ranks(self, default: str) -> None:
        """Add `--ranks` and `--restarts`. `default` describes the number of ranks without `--ranks`."""
        self.add_argument(
            "--ranks",
            type=rank_range,
            metavar="N",
            help=f"number of processes on this host (default: {default}). MIN:MAX: at most MAX, and fewer if some can't be started",
        )
        self.add_restarts()

    def add_restarts(self) -> None:
        """Add `--restarts`."""
        self.add_argument(
            "--restarts",
            type=whole_number(0),
            default=RESTARTS,
            metavar="N",
            help="number of times within an hour that the ranks start again from the newest checkpoint after one was killed, crashed or hung "
            f"(default: {RESTARTS}). 0: never; a single rank then trains in this process, where debuggers work",
        )

    def add_cluster(self, clusters: Sequence[str]) -> None:
        """Add `--on` and `--job`. `clusters` are the values of `--on` besides `local`."""
        self.add_argument(
            "--on",
            choices=["local", *clusters],
            default="local",
            metavar="CLUSTER",
            help=f"where the ranks run: local (this host, the default), {', '.join(clusters)}. A run on a cluster needs a folder that all hosts "
            "share, and has the digests of a local one",
        )
        self.add_argument(
            "--job",
            type=_option,
            nargs="+",
            action="extend",
            default=[],
            metavar="KEY=VALUE",
            help="options of the cluster. slurm: those of sbatch, such as partition=gpu time=08:00:00 nodes=2 exclusive=; kubernetes, whose manifest is "
            "printed: image, claim (the volume of the runs), kind (job, jobset or rayjob), cpu, memory and gpus of a rank; ray: address (default: RAY_ADDRESS, or "
            "Ray is started on this host), cpu and gpus of a rank",
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


def is_on_cluster(args: argparse.Namespace) -> bool:
    """Return True if `--on`, of `add_cluster`, names a cluster. Raises ValueError for `--job` without one."""
    if args.job and args.on == "local":
        raise ValueError("--job needs --on with the name of a cluster")
    return bool(args.on != "local")


def rank_range(text: str) -> range:
    """Parse `N`, a number of ranks, or `MIN:MAX`, for `type=`. Return all numbers that are allowed."""
    low, colon, high = text.partition(":")
    numbers = [int(word) for word in ([low, high] if colon else [low]) if word.isascii() and word.isdigit()]
    if len(numbers) != 1 + len(colon) or not 1 <= numbers[0] <= numbers[-1]:
        raise argparse.ArgumentTypeError(f"is {text!r}: it must be a whole number, at least 1, or MIN:MAX, such as 2:4")
    return range(numbers[0], numbers[-1] + 1)


def _option(text: str) -> tuple[str, str]:
    """Parse `KEY=VALUE` for `type=`."""
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[a-z][a-z0-9-]*", key):
        raise argparse.ArgumentTypeError(f"is {text!r}: it must be KEY=VALUE, such as time=08:00:00")
    return key, value


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
