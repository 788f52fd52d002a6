"""`lockstep config`: print a preset, a file and flags as one config file."""

from collections.abc import Sequence

from lockstep import presets
from lockstep.cli.arguments import Arguments
from lockstep.config.compose import written
from lockstep.config.files import format_yaml
from lockstep.config.flags import parse_flags

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Print the fields that a preset, a file and flags give as YAML. Return the exit code.

    Raises ValueError for input that `lockstep train` would reject. The message is one line.
    """
    parser = Arguments(
        "config",
        "Prints a preset, a file and flags as one config file, which `lockstep train --config` reads: also a .gin file as YAML.",
    )
    parser.add_experiment()
    parser.epilog = "Any field as a flag, --section.field VALUE, over both: see lockstep train --help."
    flags, rest = parse_flags(argv, ("--config",))
    args = parser.read(rest)
    tree = written(presets.read(args.preset) if args.preset else None, args.config, flags)
    print(format_yaml(tree) or "{}")
    return 0
