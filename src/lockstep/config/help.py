"""Output of `--help` for commands that have the flags of the config."""

import dataclasses
import io
import types
from contextlib import redirect_stdout, suppress
from functools import partial
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
import tyro

from lockstep.config import Config
from lockstep.config.flags import SHORT

__all__ = ["help_text"]

_METAVARS = {bool: "BOOL", int: "INT", float: "NUMBER", str: "TEXT"}


def help_text(verb: str, default: Config, usage: str = "") -> str:
    """Return the text that `lockstep VERB --help` prints.

    Args:
        verb: The name of the command.
        default: The config whose values are shown as defaults.
        usage: The help for the command's arguments, such as argparse's `format_help()`. If empty, print a usage line.
    """
    # tyro chooses its box characters by the encoding of the stream
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(output), suppress(SystemExit):
        tyro.cli(_help_dataclass(default), args=["--help"], prog=f"lockstep {verb}")
    page = output.buffer.getvalue().decode()
    sections = page[page.index("╭", page.index("╰")) :].rstrip()
    head = usage.rstrip() or f"usage: lockstep {verb} [--section.field VALUE …]"
    intro = "every field of the config; files have the same names:"
    return f"{head}\n\nshort flags:\n{_short_flags()}\n\n{intro}\n\n{sections}\n"


def _short_flags() -> str:
    """Format the short flags and the fields that they set, two per line."""
    pairs = [f"--{short} = --{path}".replace("_", "-") for short, path in SHORT.items()]
    return "\n".join(
        "  " + "".join(f"{pair:<36}" for pair in pairs[row : row + 2]).rstrip() for row in range(0, len(pairs), 2)
    )


def _help_dataclass(default: Any) -> Any:
    """Create a copy of the dataclass of `default` for tyro, with help texts on one line and placeholders for values."""
    cls = type(default)
    texts = {part.arg_name: part.description for part in docstring_parser.parse_from_object(cls).params}
    fields: list[tuple[str, Any, Any]] = []
    for name, hint in get_type_hints(cls).items():
        value = getattr(default, name)
        if dataclasses.is_dataclass(value):
            section = _help_dataclass(value)
            fields.append((name, section, dataclasses.field(default_factory=section)))
            continue
        text = " ".join((texts.get(name) or "").split())
        shown = Annotated[hint, tyro.conf.arg(help=text, metavar=None if hint is bool else _metavar(hint))]  # type: ignore[valid-type]
        fields.append((name, shown, dataclasses.field(default_factory=partial(getattr, default, name))))
    described = dataclasses.make_dataclass(cls.__name__, fields)
    described.__doc__ = " ".join((cls.__doc__ or "").split())
    return described


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
