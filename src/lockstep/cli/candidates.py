"""Candidates for the last argument of a command line, which the scripts of `lockstep completion` ask for."""

import re
from argparse import Action
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from lockstep import presets
from lockstep.algorithm.plan import NAMED_KINDS
from lockstep.cli.arguments import Arguments, parser_of
from lockstep.config.decode import known_fields
from lockstep.config.flags import SHORT
from lockstep.models.settings import BUILT_IN
from lockstep.processes.exit_codes import DONE
from lockstep.run.settings import RunConfig

__all__ = ["find_candidates", "main"]

_CONFIG_SECTIONS: dict[str, tuple[str, ...] | None] = {
    "train": None,
    "sweep": None,
    "config": None,
    "bench": None,
    "check": ("env",),
}
"""Commands with the flags of the config, and the sections that they take; None: all."""
_SEVERAL = ("*", "+", "...")
"""`nargs` of arguments that take any number of words."""


def main(argv: Sequence[str]) -> int:
    """Print the candidates for the last argument of `lockstep`, one per line, with a tab and a description if there is one."""
    for name, description in find_candidates(argv).items():
        print(f"{name}\t{description}" if description else name)
    return DONE


def find_candidates(arguments: Sequence[str]) -> dict[str, str]:
    """Return the possible last arguments that begin with the last of `arguments`, with their descriptions.

    Args:
        arguments: The arguments of `lockstep`, of which the last may be incomplete or empty.
    """
    *before, prefix = arguments or [""]
    found = _candidates(before, prefix)
    return {name: text for name, text in found.items() if name.startswith(prefix)}


def _candidates(before: list[str], prefix: str) -> dict[str, str]:
    from lockstep.cli.main import COMMANDS

    if not before:
        return COMMANDS | {"--help": "show the commands", "--version": "show the version"}
    command, *before = before
    if command not in COMMANDS:
        return {}
    module = import_module(f"lockstep.cli.{command}")
    if command == "bench":
        if not before:
            return dict(module.KINDS)
        if before[0] not in module.KINDS:
            return {}
        module = import_module(f"lockstep.cli.bench_{before.pop(0)}")
    parser = parser_of(module.main)
    fields = _config_fields(command, parser)
    if prefix.startswith("-"):
        return _flags(parser, fields)
    flag = next((item for item in reversed(before) if item.startswith("--")), None)
    if flag is not None:
        values = _values(parser, fields, flag, is_first=before[-1] == flag)
        if values is not None:
            return dict.fromkeys(values, "")
    positional = _next_positional(parser, _count_positionals(parser, fields, before))
    return dict.fromkeys(_positional_values(positional), "") if positional else {}


def _next_positional(parser: Arguments, given: int) -> Action | None:
    """Return the positional argument that follows `given` others; None if the command takes no more."""
    actions = [action for action in parser.actions if not action.option_strings]
    if given < len(actions):
        return actions[given]
    return actions[-1] if actions and actions[-1].nargs in _SEVERAL else None


def _count_positionals(parser: Arguments, fields: dict[str, Any], before: Sequence[str]) -> int:
    """Return how many of the words `before` the last one are neither flags nor their values."""
    count, flag, is_first = 0, "", False
    for word in before:
        if word.startswith("-"):
            flag, is_first = word, "=" not in word
        else:
            count += not _takes_value(parser, fields, flag, is_first)
            is_first = False
    return count


def _config_fields(command: str, parser: Arguments) -> dict[str, Any]:
    """Return the type of every field of the config that the command takes, by flag. Short flags come first."""
    known = {f"{section}.{field}": hint for section, field, hint in known_fields()}
    flags = {f"--{short}".replace("_", "-"): known[path] for short, path in SHORT.items()}
    flags |= {f"--{path}".replace("_", "-"): hint for path, hint in known.items()}
    if command == "resume":  # its description names them
        named = re.findall(r"--[\w.-]*\w", parser.description or "")
        return {flag: flags[flag] for flag in named}
    if command not in _CONFIG_SECTIONS:
        return {}
    sections = _CONFIG_SECTIONS[command]
    return {flag: hint for flag, hint in flags.items() if sections is None or re.match(r"--(\w+)", flag)[1] in sections}  # type: ignore[index]


def _flags(parser: Arguments, fields: dict[str, Any]) -> dict[str, str]:
    own = {flag: _first_sentence(action) for action in parser.actions for flag in action.option_strings}
    negated = {flag.replace(".", ".no-", 1): "" for flag, hint in fields.items() if "." in flag and _is_boolean(hint)}
    return own | dict.fromkeys(fields, "") | negated


def _first_sentence(action: Action) -> str:
    return re.split(r"[;(:]|\. ", action.help or "")[0].strip()


def _takes_value(parser: Arguments, fields: dict[str, Any], flag: str, is_first: bool) -> bool:
    """Return True if the next word may be a value of the flag. `is_first` is True if the flag has no value yet."""
    action = _action(parser, flag)
    if action is not None:
        return action.nargs in _SEVERAL or (is_first and action.nargs != 0)
    hint = fields.get(flag)
    return hint is not None and (is_first or any(get_origin(kind) is tuple for kind in (hint, *get_args(hint))))


def _values(parser: Arguments, fields: dict[str, Any], flag: str, is_first: bool) -> Sequence[str] | None:
    """Return the values of a flag that may come next, empty if any text may; None if the flag takes no further value."""
    if not _takes_value(parser, fields, flag, is_first):
        return None
    action = _action(parser, flag)
    return [str(choice) for choice in action.choices or ()] if action else list(_names(flag) or _choices(fields[flag]))


def _action(parser: Arguments, flag: str) -> Action | None:
    return next((action for action in parser.actions if flag in action.option_strings), None)


def _names(flag: str) -> Sequence[str]:
    """Return the known values of a field of text, such as `env.id`; none for other fields."""
    name = flag.removeprefix("--").replace("-", "_")
    section, _, field = SHORT.get(name, name).partition(".")
    if (section, field) == ("env", "id"):
        return _environments()
    if (section, field) == ("plan", "kind"):
        return (*NAMED_KINDS, "1:1")
    return BUILT_IN.get(field, ()) if section == "policy" else ()


def _environments() -> list[str]:
    from lockstep.envs.catalog import known_environments
    from lockstep.envs.families import games

    return [*(known.env_id for known in known_environments()), *games()]


def _choices(hint: Any) -> Iterator[str]:
    """Yield the values that a type enumerates."""
    if hint is bool:
        yield from ("true", "false")
    elif hint is type(None):
        yield "none"
    elif get_origin(hint) is Literal:
        yield from map(str, get_args(hint))
    else:
        for kind in get_args(hint):
            yield from _choices(kind)


def _is_boolean(hint: Any) -> bool:
    return bool in (hint, *get_args(hint))


def _positional_values(action: Action) -> list[str]:
    """Return the values of a positional argument: its choices, presets, environments or runs."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if action.metavar in ("PRESET", "NAME"):
        return presets.names()
    if action.metavar == "ENV":
        return _environments()
    if action.metavar in ("RUN", "RUN_A", "RUN_B"):
        return sorted(path.parent.name for path in Path(RunConfig.folder).glob("*/config.json"))
    return []
