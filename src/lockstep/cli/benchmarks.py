"""What the benchmarks of `lockstep bench` have in common: their flags, the experiment that they measure, and what they write."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from lockstep import presets
from lockstep.cli.arguments import Arguments, whole_number
from lockstep.config import Config
from lockstep.config.compose import import_env_module, load
from lockstep.group.memory import usable_cores
from lockstep.run.environment import describe_environment

__all__ = ["LEAST", "add_json", "add_repeats", "composed", "machine", "parser_of", "resolved", "tell", "write"]

LEAST = 5
"""Iterations of a run."""
_LONGEST = 3600


def composed(own: argparse.Namespace, tree: Mapping[str, Mapping[str, object]]) -> Config:
    """The experiment that preset, file and flags give. Raises ValueError."""
    preset = presets.read(own.preset) if own.preset else None
    return load(preset, own.config, import_env_module(preset, own.config, tree))


def resolved(config: Config, ranks: int | None) -> tuple[Config, int]:
    """The config with everything decided as `train` would, whether to compile too, and the ranks. A budget that is less than one
    iteration is no error. Raises ValueError.
    """
    from lockstep.experiment.resolve import resolve
    from lockstep.experiment.start import resolve_start

    config, _, count = resolve_start(config, None, ranks)
    environments = config.env.per_rank * count if config.env.per_rank else config.env.count
    steps = max(config.run.total_steps, environments * config.rollout.steps)
    return resolve(dataclasses.replace(config, run=dataclasses.replace(config.run, total_steps=steps)), count), count


def tell(line: str) -> None:
    """To the standard error stream, at once."""
    print(line, file=sys.stderr, flush=True)


def machine(own: argparse.Namespace, kind: str, ranks: int) -> dict[str, object]:
    """What a file says of where its numbers are from: the flags that were given, cores, processor, versions."""
    environment = {name: value for name, value in describe_environment(ranks).items() if name != "host"}
    arguments = {name: value for name, value in vars(own).items() if name not in ("json", "config", "out")}
    return {"benchmark": kind, "arguments": arguments, "cores": usable_cores(), **environment}


def write(own: argparse.Namespace, kind: str, ranks: int, found: Mapping[str, object]) -> None:
    """Writes all of it where `--json` says."""
    if own.json is not None:
        own.json.write_text(json.dumps({**machine(own, kind, ranks), **found}, indent=1) + "\n")


def parser_of(kind: str, does: str) -> Arguments:
    """The flags of a benchmark of one experiment, but for `--ranks`."""
    parser = Arguments(f"bench {kind}", f"{does} Takes every flag of `lockstep train` as well.")
    parser.add_argument("preset", nargs="?", metavar="PRESET", help="a ready experiment; `lockstep presets` lists them")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a .yaml, .json or .gin file, over the preset")
    add_repeats(parser)
    parser.add_argument(
        "--seconds", type=_seconds, default=5.0, metavar="S", help="of every run, about, after its start (default 5)"
    )
    parser.add_argument(
        "--iterations",
        type=whole_number(LEAST),
        metavar="K",
        help="of every run, instead of --seconds; the first tenth, at least 2, is left out",
    )
    return parser


def add_repeats(parser: Arguments) -> None:
    """Adds `--repeats`."""
    parser.add_argument(
        "--repeats", type=whole_number(1), default=5, metavar="R", help="runs of each, in turn (default 5)"
    )


def add_json(parser: Arguments) -> None:
    """Adds `--json`."""
    parser.add_argument(
        "--json", type=_new_file, metavar="FILE", help="write everything there, machine and versions too"
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"is {text!r}: it must be above 0 and at most {_LONGEST}")
    return seconds


def _new_file(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():  # else an hour's numbers would find no place
        raise argparse.ArgumentTypeError(f"is {text!r}: it must be a file in a folder that exists")
    return path
