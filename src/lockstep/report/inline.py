"""Figures and videos embedded in an HTML page, so that the browser loads no other file."""

import re
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.files import read_file
from lockstep.report.hover import Readouts, overlay
from lockstep.report.style import COLORS

__all__ = ["COLOR_NAMES", "inline_figure", "inline_video"]

_LARGEST_VIDEO = 2**28
"""Largest size in bytes of a video in a page."""

COLOR_NAMES = {
    "#ffffff": "none",
    "#000000": "var(--ink)",
    "#595959": "var(--muted)",
    "#dddddd": "var(--line)",
    "#bbbbbb": "var(--idle)",
    **{color.lower(): f"var(--series-{number})" for number, color in enumerate(COLORS[:6])},
}
"""CSS variable for each color of the figures. The page defines the variables for the light and the dark theme."""


def inline_figure(draw: Callable[[Path], Readouts | None], name: str) -> str:
    """Return the `<svg>` that `draw` writes, in the colors and font of the page, with the values that `draw` returns for the pointer.

    `name` is the prefix of its ids, unique within the page.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "figure.svg"
        values = draw(path)
        text = path.read_text(encoding="utf-8")
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text[text.index("<svg") :], flags=re.DOTALL)
    if values is not None:
        text = text.replace("</svg>", f"{overlay(text, values)}</svg>")
    text = re.sub(r'(\bid="|"#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"#[0-9A-Fa-f]{6}\b", lambda match: COLOR_NAMES.get(match[0].lower(), match[0]), text)
    text = re.sub(r"font-family:[^;\"]*;? ?", "", text)  # the font of the page applies
    return re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*" ', r"<svg \1", text)  # scales with the column of the page


def inline_video(path: Path) -> str:
    """Return the contents of an .mp4 file as a `data:` URI."""
    return f"data:video/mp4;base64,{b64encode(read_file(path, _LARGEST_VIDEO)).decode()}"
