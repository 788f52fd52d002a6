"""Gin files (github.com/google/gin-config), read as data: one binding a line, `ppo.clip = 0.2`.

Of the language only that is read which is data: bindings of literals, and macros that stand for them. gin-config's own parser could be
given a delegate that refuses the rest; but it comes with a package whose purpose is to import and call what a file names, it takes what is given
twice, and its errors are pages. `tokenize` and `ast.literal_eval`, which it is made of too, are all that this part of the language needs.
"""

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from reprlib import Repr

from lockstep.config.gin_aliases import Binding, translate

__all__ = ["parse_gin"]

_FIELD = "a field is section.field = VALUE, such as run.seed = 3"
_LARGEST = 100_000
"""Characters that the macros of one file may expand to, in total. A macro may contain others, so that few lines stand for gigabytes."""
_PLAIN = "such as 0.2, True, None, 'text' or [64, 64]"
_shown = Repr()
_shown.maxstring = 80


class _Macros:
    """The macros of one file, and the number of characters that they have expanded to."""

    def __init__(self) -> None:
        self.bindings: dict[str, Binding] = {}
        self.used: set[str] = set()
        self._expanded = 0

    def expand(self, shown: str, name: str) -> str:
        """The literal that `%name` stands for. Raises ValueError for an unknown macro and beyond the limit on expanded text."""
        if name not in self.bindings:
            raise ValueError(f"{shown}: the macro is not defined in a line above")
        self.used.add(name)
        literal = repr(self.bindings[name].value)
        self._expanded += len(literal)
        if self._expanded > _LARGEST:
            raise ValueError(f"{shown}: the macros of this file expand to more than {_LARGEST:,} characters; use fewer")
        return literal


def parse_gin(text: str) -> dict[str, dict[str, object]]:
    """The tree `{"ppo": {"clip": 0.2}}` of a gin text.

    Raises ValueError, with the line, for whatever is not data (imports, includes, references, scopes), for a macro that is not
    defined above or never used, macros that expand to more than 100,000 characters, broken syntax, a name that is given twice, and what
    `translate` finds wrong.
    """
    macros = _Macros()
    bindings: list[Binding] = []
    lines = text.splitlines() or [""]
    for line, words in _statements(text):
        shown = f"line {line}: {_shown.repr(lines[line - 1].strip())}"
        name = _name(shown, words)
        value = _value(shown, words[words.index("=") + 1 :], macros)
        if name in macros.bindings or any(name == binding.name for binding in bindings):
            raise ValueError(f"line {line}: {name} is given twice")
        if "." in name:
            bindings.append(Binding(line, name, value))
        else:
            macros.bindings[name] = Binding(line, name, value)
    for name in macros.bindings.keys() - macros.used:
        raise ValueError(f"line {macros.bindings[name].line}: {name} is used nowhere: {_FIELD}")
    tree: dict[str, dict[str, object]] = {}
    for line, name, value in translate(bindings):
        section, _, field = name.partition(".")
        if field in tree.setdefault(section, {}):
            raise ValueError(f"line {line}: {name} is given twice")
        tree[section][field] = value
    return tree


def _statements(text: str) -> Iterator[tuple[int, list[str]]]:
    """Line and words of every statement; brackets may go over several lines."""
    left_out = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
    words: list[str] = []
    first = end = 1
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            end = token.start[0]
            if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
                if words:
                    yield first, words
                words = []
            elif token.type not in left_out:
                first = first if words else token.start[0]
                words.append(token.string)
    except (tokenize.TokenError, SyntaxError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else end
        raise ValueError(f"line {line}: a bracket or a quote is not closed, or the indentation is broken") from None


def _name(shown: str, words: Sequence[str]) -> str:
    """The name that is bound: a macro's, or `section.field`."""
    if words[0] in ("import", "from"):
        raise ValueError(f"{shown} would run code: a config is read as data; leave it out")
    if words[0] == "include":
        raise ValueError(f"{shown}: other files are not read; copy what is in it")
    key = words[: words.index("=")] if "=" in words else []
    if "/" in key:
        raise ValueError(f"{shown} has a scope: a config has one value of each field")
    name = "".join(key)
    parts = name.split(".")
    if len(parts) > 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{shown}: {_FIELD}")
    return name


def _value(shown: str, words: Sequence[str], macros: _Macros) -> object:
    """The value of the words behind `=`, with their macros expanded."""
    if "@" in words:
        raise ValueError(f"{shown} has a reference, which would run code: give its value")
    literal: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if before == "%":
            literal[-1] = macros.expand(shown, word)
        else:
            literal.append(word)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's own about what a literal looks like, such as "\d"
            value: object = ast.literal_eval(" ".join(literal))
    except (ValueError, TypeError, SyntaxError, MemoryError):
        raise ValueError(f"{shown} gives no plain value, {_PLAIN}") from None
    return value
