"""`lockstep config`: what a preset, a file and flags say together."""

from collections.abc import Sequence
from pathlib import Path

from lockstep import presets
from lockstep.cli.arguments import Arguments
from lockstep.config.compose import written
from lockstep.config.files import format_yaml
from lockstep.config.flags import parse_flags

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Prints one YAML file. Raises ValueError in one line for what `lockstep train` would refuse to read."""
    parser = Arguments(
        "config",
        "Prints a preset, a file and flags as one config file, which `lockstep train --config` reads: also a .gin file as YAML.",
    )
    parser.add_argument("preset", nargs="?", metavar="PRESET", help="a ready experiment; `lockstep presets` lists them")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a .yaml, .json or .gin file, over the preset")
    parser.epilog = "Any field as a flag, --section.field VALUE, over both: see lockstep train --help."
    tree, rest = parse_flags(argv, ("--config",))
    own = parser.read(rest)
    given = written(presets.read(own.preset) if own.preset else None, own.config, tree)
    print(format_yaml(given) or "{}")
    return 0
