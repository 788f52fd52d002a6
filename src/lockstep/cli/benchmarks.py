"""Parts that the benchmarks of `lockstep bench` share: flags, the experiment that is measured, and the JSON file."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from lockstep import presets
from lockstep.cli.arguments import Arguments, whole_number
from lockstep.config import Config
from lockstep.config.compose import dropped_fields, import_env_module, load
from lockstep.processes.cores import usable_cores
from lockstep.run.environment import describe_environment

__all__ = [
    "LEAST",
    "add_json",
    "add_repeats",
    "compose_config",
    "describe_measurement",
    "make_parser",
    "parse_ranks",
    "print_line",
    "resolve_config",
    "write_json",
]

LEAST = 5
"""Smallest number of iterations of a run."""
_MAX_SECONDS = 3600


def compose_config(args: argparse.Namespace, tree: Mapping[str, Mapping[str, object]]) -> Config:
    """Return the config that preset, file and flags give. Import the module of its environment, if the flags name one.

    Print a note for each field that is dropped. Raises ValueError if one of them is invalid.
    """
    preset = presets.read(args.preset) if args.preset else None
    tree = import_env_module(preset, args.config, tree, example=presets.example(args.preset))
    for line in dropped_fields(preset, args.config, tree):
        print_line(line)
    return load(preset, args.config, tree)


def resolve_config(config: Config, ranks: int | None) -> tuple[Config, int]:
    """Resolve the config as `train` does, including the choice of kernels. Return it with the number of ranks.

    A budget of less than one iteration is raised to one iteration. Raises ValueError if the config cannot be run.
    """
    from lockstep.experiment.resolve import resolve
    from lockstep.experiment.start import resolve_start

    start = resolve_start(config, None, ranks)
    config, count = start.config, start.ranks
    environments = config.env.per_rank * count if config.env.per_rank else config.env.count
    steps = max(config.run.total_steps, environments * config.rollout.steps)
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, total_steps=steps))
    return resolve(config, count, start.plan), count


def print_line(line: str) -> None:
    """Print a line to stderr and flush it."""
    print(line, file=sys.stderr, flush=True)


def describe_measurement(args: argparse.Namespace, kind: str, ranks: int) -> dict[str, object]:
    """Return the origin of the figures in a file: the arguments of the command, cores, processor and package
    versions.
    """
    environment = {name: value for name, value in describe_environment(ranks).items() if name != "host"}
    arguments = {name: value for name, value in vars(args).items() if name not in ("json", "config", "out")}
    return {"benchmark": kind, "arguments": arguments, "cores": usable_cores(), **environment}


def write_json(args: argparse.Namespace, kind: str, ranks: int, results: Mapping[str, object]) -> None:
    """Write the results and their origin to the file of `--json`, if one was given."""
    if args.json is not None:
        args.json.write_text(json.dumps({**describe_measurement(args, kind, ranks), **results}, indent=1) + "\n")


def make_parser(kind: str, description: str) -> Arguments:
    """Create the parser of a benchmark of one experiment, with all flags but `--ranks`."""
    parser = Arguments(f"bench {kind}", f"{description} Takes every flag of `lockstep train` as well.")
    parser.add_experiment()
    add_repeats(parser)
    parser.add_argument(
        "--seconds",
        type=_parse_seconds,
        default=5.0,
        metavar="S",
        help="approximate duration of every run in seconds, without its start (default 5)",
    )
    parser.add_argument(
        "--iterations",
        type=whole_number(LEAST),
        metavar="K",
        help="number of iterations of every run, instead of --seconds; the first tenth, at least 2, is not measured",
    )
    return parser


def add_repeats(parser: Arguments) -> None:
    """Add the flag `--repeats`."""
    parser.add_argument(
        "--repeats",
        type=whole_number(1),
        default=5,
        metavar="R",
        help="number of runs of every case, interleaved (default 5)",
    )


def add_json(parser: Arguments) -> None:
    """Add the flag `--json`."""
    parser.add_argument(
        "--json",
        type=_parse_new_file,
        metavar="FILE",
        help="write all results to this file, with the machine and the versions",
    )


def parse_ranks(text: str) -> list[int]:
    """Parse numbers of ranks, such as `1,2,4`, for `type=`. Return them in ascending order."""
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise argparse.ArgumentTypeError(f"is {text!r}: it must be whole numbers from 1 on, such as 1,2,4")
    return numbers


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"is {text!r}: it must be above 0 and at most {_MAX_SECONDS}")
    return seconds


def _parse_new_file(text: str) -> Path:
    path = Path(text)
    # checked before the runs, so that their results are not lost at the end
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"is {text!r}: it must be a file in a folder that exists")
    return path
