"""The text of `--help` for commands that have the flags of the config."""

import dataclasses
import io
import shutil
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.text import Text

from lockstep.config import Config
from lockstep.config.flags import SHORT

__all__ = ["help_text"]

_METAVARS = {bool: "BOOL", int: "INT", float: "NUMBER", str: "TEXT"}
_INDENT = 6


def help_text(command: str, default: Config, usage: str = "") -> str:
    """Return the text of `lockstep COMMAND --help`, in the width of the terminal.

    Args:
        command: The command.
        default: The config whose values are shown as defaults.
        usage: The help for the command's arguments, such as argparse's `format_help()`. If empty, a usage line is generated.
    """
    console = Console(file=io.StringIO(), width=shutil.get_terminal_size().columns, color_system=None)
    for section in dataclasses.fields(default):
        console.print(_panel(section.name, getattr(default, section.name)))
    assert isinstance(console.file, io.StringIO)
    head = usage.rstrip() or f"usage: lockstep {command} [--section.field VALUE …]"
    intro = "all fields of the config; files use the same names:"
    return f"{head}\n\nshort flags:\n{_short_flags()}\n\n{intro}\n\n{console.file.getvalue().rstrip()}\n"


def _short_flags() -> str:
    """Format the short flags and the fields that they set, two per line."""
    pairs = [f"--{short} = --{path}".replace("_", "-") for short, path in SHORT.items()]
    return "\n".join(
        "  " + "".join(f"{pair:<36}" for pair in pairs[row : row + 2]).rstrip() for row in range(0, len(pairs), 2)
    )


def _panel(name: str, section: Any) -> Panel:
    """Return the flags of a section, with the docstrings of its fields and its values as defaults."""
    kind = type(section)
    texts = {part.arg_name: part.description for part in docstring_parser.parse_from_object(kind).params}
    parts: list[Any] = [Text(" ".join((kind.__doc__ or "").split())), Rule(style="")]
    for field, hint in get_type_hints(kind).items():
        text = " ".join((texts.get(field) or "").split())
        parts.append(Text(_flag(f"{name}.{field}".replace("_", "-"), hint)))
        parts.append(Padding(Text(f"{text} (default: {_format_default(getattr(section, field))})"), (0, 0, 0, _INDENT)))
    return Panel(Group(*parts), title=f"{name} options", title_align="left")


def _flag(path: str, hint: Any) -> str:
    if bool in (hint, *get_args(hint)):
        section, _, field = path.partition(".")
        return f"--{path}, --{section}.no-{field}"
    return f"--{path} {_metavar(hint)}"


def _format_default(value: object) -> str:
    """Return a default value as a user would write it."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "[]"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def _metavar(hint: Any) -> str:
    """Return the placeholder for values of a type, such as `INT` or `NUMBER|none`."""
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        if set(arguments) >= {float, str}:
            return "SCHEDULE" + ("|none" if types.NoneType in arguments else "")
        return "|".join("none" if member is types.NoneType else _metavar(member) for member in arguments)
    if kind is Literal:
        return "{" + ",".join(arguments) + "}"
    if kind is tuple:
        return f"{_metavar(arguments[0])} …"
    if kind is dict:
        return "'{KEY: VALUE, …}'"
    return _METAVARS[hint]
