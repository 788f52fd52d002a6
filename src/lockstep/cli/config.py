"""`lockstep config`: print the merged config of a preset, a file and flags."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from lockstep import presets
from lockstep.cli.arguments import Arguments
from lockstep.config.compose import dropped_fields, merged_tree
from lockstep.config.files import format_yaml
from lockstep.config.flags import parse_flags
from lockstep.config.zoo import convert_zoo

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
    parser.add_argument(
        "--from-zoo",
        type=Path,
        metavar="FILE",
        help="convert the entry of --env ID in a hyperparameter file of rl-baselines3-zoo, such as its ppo.yml",
    )
    parser.epilog = "Any field as a flag, --section.field VALUE, over both: see lockstep train --help."
    flags, rest = parse_flags(argv, ("--config", "--from-zoo"))
    args = parser.read(rest)
    if args.from_zoo:
        return _print_converted(args, flags)
    preset = presets.read(args.preset) if args.preset else None
    print(format_yaml(merged_tree(preset, args.config, flags)) or "{}")
    for line in dropped_fields(preset, args.config, flags):
        print(line, file=sys.stderr)
    return 0


def _print_converted(args: Namespace, flags: dict[str, dict[str, object]]) -> int:
    if args.preset or args.config:
        raise ValueError("--from-zoo: it can't be combined with a preset or --config; flags override its fields")
    env_id = flags.get("env", {}).pop("id", None)
    if env_id is None:
        raise ValueError("--from-zoo: --env is missing: it names the environment whose entry is converted")
    converted = convert_zoo(args.from_zoo, str(env_id))
    print(f"# settings of {converted.name} in {args.from_zoo.name} of rl-baselines3-zoo")
    print(format_yaml(merged_tree(converted.tree, None, flags)))
    for note in converted.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0
