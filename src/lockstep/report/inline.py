"""Pictures and films inside a page: what a browser shows without asking for another file."""

import re
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.report.style import COLOURS

__all__ = ["COLOUR_NAMES", "inline_film", "inline_picture"]

COLOUR_NAMES = {
    "#ffffff": "none",
    "#000000": "var(--ink)",
    "#595959": "var(--muted)",
    "#dddddd": "var(--line)",
    "#bbbbbb": "var(--idle)",
    **{colour.lower(): f"var(--series-{number})" for number, colour in enumerate(COLOURS[:6])},
}
"""What colours of pictures are called in a page, where the reader's light or dark theme decides what they are."""


def inline_picture(draw: Callable[[Path], None], name: str) -> str:
    """The `<svg>` of a picture, with its text as text and the page's colours.

    Args:
        draw: Draws it into the .svg that it is given.
        name: Goes before all ids, of which a page may have each only once.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        draw(path)
        text = path.read_text(encoding="utf-8")
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(\bid="|"#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda found: COLOUR_NAMES.get(found[0], found[0]), text)
    text = re.sub(r"font-family:[^;\"]*;? ?", "", text)  # the page's own
    return re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*" ', r"<svg \1", text)  # as wide as there is room


def inline_film(path: Path) -> str:
    """An .mp4 as a `data:` URI."""
    return f"data:video/mp4;base64,{b64encode(path.read_bytes()).decode()}"
