"""`lockstep train`: a new run."""

import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep import presets
from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.start import listen_under, start, told_once
from lockstep.config.compose import import_env_module, load
from lockstep.config.flags import parse_flags
from lockstep.runtime.rank_info import find_rank_info

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Trains, and returns the exit code. Raises ValueError in one line for bad input, before any process starts."""
    parser = _parser()
    if {"-h", "--help"} & set(argv):
        from lockstep.config.help import help_text

        preset = next((presets.read(word) for word in argv if word in presets.names()), None)
        print(help_text("train", load(preset, None, {}), parser.format_help()))
        return 0
    place = find_rank_info()
    with told_once(place):
        tree, rest = parse_flags(argv)
        own = parser.read(rest)
        preset = presets.read(own.preset) if own.preset else None
        config = load(preset, own.config, import_env_module(preset, own.config, tree))
        listen_under(place)
        from lockstep.experiment.execute import create_run
        from lockstep.experiment.resolve import resolve
        from lockstep.experiment.start import resolve_start, start_warnings

        config, place, ranks = resolve_start(config, place, own.ranks)
        resolved = resolve(config, ranks)
        if place is None or place.rank == 0:
            for line in start_warnings(config, resolved):
                print(line, file=sys.stderr)
    if place is not None:
        from lockstep.cli.work import train_under_launcher

        return train_under_launcher(place, resolved, own.preset)
    folder = create_run(resolved, own.preset, ranks)
    folder.lock()
    return start(folder, ranks, resume_from=0)


def _parser() -> Arguments:
    parser = Arguments("train", "Trains an agent: a preset, a file, any field as a flag; what comes later wins.")
    parser.add_argument("preset", nargs="?", metavar="PRESET", help="a ready experiment; `lockstep presets` lists them")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a .yaml, .json or .gin file, over the preset")
    parser.add_argument(
        "--ranks",
        type=whole_number(1),
        metavar="N",
        help="processes on this host (default: one per core as far as there are plan.shards, or what --plan asks for; 1 without "
        "plan.shards). They only carry shards: with plan.shards given, the result does not depend on them",
    )
    return parser
