"""`lockstep config`: print the merged config of a preset, a file and flags."""

import sys
from collections.abc import Sequence

from lockstep import presets
from lockstep.cli.arguments import Arguments
from lockstep.config.compose import dropped_fields, merged_tree
from lockstep.config.files import format_yaml
from lockstep.config.flags import parse_flags

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Print the fields that a preset, a file and flags give as YAML. Return the exit code.

    Raises ValueError for input that `lockstep train` would reject.
    """
    parser = Arguments(
        "config",
        "Prints the merged config of a preset, a file and flags as one file for `lockstep train --config`. Converts .gin files to YAML.",
    )
    parser.add_experiment()
    parser.epilog = "Any field as a flag, --section.field VALUE, over both: see lockstep train --help."
    flags, rest = parse_flags(argv, ("--config",))
    args = parser.read(rest)
    preset = presets.read(args.preset) if args.preset else None
    print(format_yaml(merged_tree(preset, args.config, flags)) or "{}")
    for line in dropped_fields(preset, args.config, flags):
        print(line, file=sys.stderr)
    return 0
