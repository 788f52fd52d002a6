"""Blocks of code in the documents."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r'^( *)```(\w+)(?: title="([^"]+)")?\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """Fenced block of code."""

    language: str
    title: str | None
    """Name of the file that the block shows, if any."""
    text: str


def blocks(document: Path) -> Iterator[Block]:
    """Yield the blocks of a document in order."""
    for _, language, title, text in _FENCE.findall(document.read_text(encoding="utf-8")):
        yield Block(language, title or None, dedent(text))


def commands(document: Path) -> list[str]:
    """Return the shell commands of a document in order, without comments and empty lines."""
    lines = [line for block in blocks(document) if block.language == "sh" for line in block.text.splitlines()]
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def is_example(code: str) -> bool:
    """Return True if the code is an excerpt from a program in `examples/`; these have their own tests."""
    return any(code.strip() in path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py"))
