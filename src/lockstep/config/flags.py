"""Command-line flags of the config: every field is a flag `--section.field VALUE`."""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from lockstep.config import Config
from lockstep.config.decode import known_fields, nearest_field

__all__ = ["MODULES", "SHORT", "as_flags", "as_text", "find_field", "flag_of", "module_flags", "parse_flags"]

SHORT = {
    "env": "env.id",
    "plan": "plan.kind",
    "seed": "run.seed",
    "name": "run.name",
    "total_steps": "run.total_steps",
    "out": "run.folder",
}
"""Fields by their short flag without dashes: `--env` is short for `--env.id`."""

MODULES = (("env", "module"), ("run", "hooks"))
"""Sections and fields that name modules to import."""


def parse_flags(
    argv: Sequence[str], command_flags: Sequence[str] = ("--ranks", "--restarts", "--config")
) -> tuple[dict[str, dict[str, object]], list[str]]:
    """Split a command line into the flags of the config and the remaining arguments.

    Values stay text: `decode` converts them, so that files and flags follow the same rules.

    Args:
        argv: The arguments of the command.
        command_flags: The flags that the command parses itself. They and their values are among the remaining arguments.

    Returns:
        The tree of the fields that were given, and the remaining arguments in order.

    Raises ValueError, with a one-line message, for an unknown flag (the message names the nearest one), a flag that is
    given twice and a missing value.
    """
    field_types = {f"{section}.{field}": hint for section, field, hint in known_fields()}
    tree: dict[str, dict[str, object]] = {}
    arguments = list(argv)
    rest: list[str] = []
    while arguments:
        argument = arguments.pop(0)
        if argument == "--":
            return tree, rest + arguments
        name, equals, text = argument.partition("=")
        if not _is_flag(argument) or name in command_flags or name in ("-h", "--help"):
            rest.append(argument)
            continue
        path, negated = _resolve_flag(name, field_types, command_flags)
        section, _, field = path.partition(".")
        if field in tree.setdefault(section, {}):
            raise ValueError(f"{name}: {path} is given twice")
        values = [text] if equals else None
        tree[section][field] = (
            _negated_value(name, field_types[path], values)
            if negated
            else _take_value(name, field_types[path], values, arguments)
        )
    return tree, rest


def as_flags(tree: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Format a tree of plain values as command-line arguments, such as `["--ppo.clip", "0.1"]`.

    `parse_flags` and `decode` reverse this.
    """
    arguments = []
    for section, fields in tree.items():
        for field, value in fields.items():
            flag = flag_of(f"{section}.{field}")
            values = [as_text(item) for item in value] if isinstance(value, (list, tuple)) else [as_text(value)]
            # after a space, a value that starts with a dash would be read as a flag
            arguments += [f"{flag}={values[0]}"] if len(values) == 1 and _is_flag(values[0]) else [flag, *values]
    return arguments


def flag_of(path: str) -> str:
    """Return the flag of the field `section.field`, the short one if there is one."""
    short = {path: flag for flag, path in SHORT.items()}
    return f"--{short.get(path, path).replace('_', '-')}"


def module_flags(config: Config) -> list[str]:
    """Return the flags for the modules that a config names, which a command accepts only on its command line."""
    values = {section: {field: getattr(getattr(config, section), field)} for section, field in MODULES}
    return as_flags({section: fields for section, fields in values.items() if None not in fields.values()})


def as_text(value: object) -> str:
    """Format a plain value as a flag accepts it."""
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return " ".join(map(as_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def find_field(name: str) -> str:
    """Return the path `section.field` of the field with this flag name, which is written without the leading dashes.

    Raises ValueError if there is no such field (the message names the nearest one), or if the name is negated.
    """
    field_types = {f"{section}.{field}": hint for section, field, hint in known_fields()}
    path, negated = _resolve_flag(f"--{name}", field_types, ())
    if negated:
        raise ValueError(f"{name}: set the field itself to true or false")
    return path


def _is_flag(argument: str) -> bool:
    """Return True if the argument begins with a dash and is not a negative number."""
    return re.match(r"-(?![\d.]|$)", argument) is not None


def _resolve_flag(name: str, field_types: Mapping[str, Any], command_flags: Sequence[str]) -> tuple[str, bool]:
    """Return the path of the field, and True if the flag is negated: `--no-policy.shared` or `--policy.no-shared`."""
    dotted_name = name.removeprefix("--").replace("-", "_")
    positive = re.sub(r"(^|\.)no_", r"\1", dotted_name, count=1)
    for candidate, negated in ((dotted_name, False), (positive, True)):
        path = SHORT.get(candidate, candidate)
        if name.startswith("--") and path in field_types:
            return path, negated
    raise ValueError(f"{' '.join(name.split())}: unknown flag" + _suggest_flag(dotted_name, command_flags))


def _suggest_flag(dotted_name: str, command_flags: Sequence[str]) -> str:
    """Return the end of the error message for an unknown flag: the nearest flag, or a hint to `--help`."""
    nearest = nearest_field(dotted_name) if "." in dotted_name else None
    if nearest is None:
        flags_by_name = {flag.removeprefix("--").replace("-", "_"): flag for flag in (*SHORT, *command_flags, "--help")}
        cutoff = 0.5 if len(dotted_name) == 2 else 0.6  # of two letters, a swap leaves one in its place
        close = get_close_matches(dotted_name, flags_by_name, 1, cutoff)
        nearest = flags_by_name[close[0]].removeprefix("--") if close else nearest_field(dotted_name)
    return f"; did you mean --{nearest.replace('_', '-')}?" if nearest else "; --help lists all flags"


def _is_boolean(field_type: Any) -> bool:
    """Return True for a boolean field, also one that may be none."""
    return bool in (field_type, *get_args(field_type))


def _negated_value(name: str, field_type: Any, values: list[str] | None) -> str:
    """Return the value of a negated flag. Raises ValueError if the field is not a boolean or a value is given."""
    if not _is_boolean(field_type):
        raise ValueError(
            f"{name}: only a boolean flag can be negated; set --{name.removeprefix('--no-').removeprefix('--')} to a value"
        )
    if values:
        raise ValueError(f"{name} takes no value")
    return "false"


def _take_value(name: str, field_type: Any, values: list[str] | None, arguments: list[str]) -> object:
    """Return the value of a flag: the text after its `=`, else the next arguments, which are then removed from `arguments`."""
    if any(
        get_origin(kind) is tuple for kind in (field_type, *get_args(field_type))
    ):  # a list, or a list that may be none
        if values is None:
            end = next((index for index, argument in enumerate(arguments) if _is_flag(argument)), len(arguments))
            values = arguments[:end]
            del arguments[:end]
        return values[0] if len(values) == 1 else values
    if values:
        return values[0]
    if _is_boolean(field_type):
        texts = ("true", "false", "none") if field_type is not bool else ("true", "false")
        return arguments.pop(0) if arguments and arguments[0].lower() in texts else "true"
    if not arguments or _is_flag(arguments[0]):
        raise ValueError(f"{name} needs a value")
    return arguments.pop(0)
