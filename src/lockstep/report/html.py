"""HTML pages: figures and tables in one file that loads no other file and contains no script."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.config.flags import as_text
from lockstep.files import write_atomically
from lockstep.messages import counted
from lockstep.report.timing import plain_number

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["NARROW", "WIDE", "PageFigure", "duration", "flags_apart", "short", "write_page"]

WIDE, NARROW = (11.0, 4.0), (4.8, 3.2)
"""Sizes of a figure that spans the page and of the others, in units of 100 pixels."""
_HOUR, _MINUTE = 3600, 60


@dataclass(frozen=True)
class PageFigure:
    """Figure of a page."""

    title: str
    alt: str
    """Text alternative, for screen readers."""
    svg: str
    narrow: str | None = None
    """The same figure for narrow screens, if it spans the page."""


def flags_apart(command: str | None) -> list[str]:
    """Return a command in parts that begin with a flag, so that no line of a page breaks within a flag; empty without a command."""
    return re.split(r" (?=--)", command) if command else []


def write_page(path: Path, template: str, content: Mapping[str, Any]) -> None:
    """Write a page, atomically. Raises ValueError if Jinja2 is not installed or the file cannot be written."""
    text = _environment().get_template(template).render(content)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None


def _environment() -> "Environment":
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise ValueError("reports need Jinja2; pip install 'lockstep-rl[report]'") from None
    environment = Environment(
        loader=PackageLoader("lockstep.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "integer": "{:,}".format,
        "short": short,
        "duration": lambda seconds: duration(seconds).replace(" ", "\u00a0"),  # a line must not end before the unit
        "plain": as_text,
        "setting": lambda value: (
            f"{value:.4g}" if isinstance(value, float) else "[]" if value == [] else as_text(value)
        ),
        "number": plain_number,
        "counted": counted,
        "zip": zip,
        "quoted": lambda path: shlex.quote(str(path)),
    }
    environment.filters |= filters
    return environment


def short(value: float) -> str:
    """Format a number with four significant digits; large numbers as integers with commas: 123,456, -0.1235, 500."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Format a duration: 59.9 s, 2 min 5 s, 2 h 2 min."""
    if round(seconds, 1) < _MINUTE:
        return f"{seconds:.3g} s"
    rounded = round(seconds)
    if rounded < _HOUR:
        return f"{rounded // _MINUTE} min {rounded % _MINUTE} s"
    return f"{rounded // _HOUR} h {rounded % _HOUR // _MINUTE} min"
