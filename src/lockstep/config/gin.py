"""Gin files (github.com/google/gin-config), read as data: one binding a line, `ppo.clip = 0.2`.

Only the part of the language that is data is supported: bindings of literals, and macros that stand for literals.
gin-config's own parser could refuse the rest through a delegate, but it comes with a package that exists to import and
call what a file names, it accepts a name that is bound twice, and its error messages are pages long. `tokenize` and
`ast.literal_eval`, on which that parser is built as well, are enough for this part.
"""

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from reprlib import Repr

from lockstep.config.gin_aliases import Binding, translate

__all__ = ["parse_gin"]

_FIELD_SYNTAX = "a field is section.field = VALUE, such as run.seed = 3"
_MAX_EXPANDED = 100_000
"""Limit on the characters that all macros of one file expand to.

Macros may contain macros, so a few lines could expand to gigabytes.
"""
_VALUE_EXAMPLES = "such as 0.2, True, None, 'text' or [64, 64]"
_short_repr = Repr()
_short_repr.maxstring = 80


class _Macros:
    """Macros of one file, with a count of the characters that they have expanded to."""

    def __init__(self) -> None:
        self.bindings: dict[str, Binding] = {}
        self.used: set[str] = set()
        self._expanded = 0

    def expand(self, location: str, name: str) -> str:
        """Return the literal that `%name` stands for.

        Raises ValueError if the macro is unknown or the limit on expanded text is exceeded.
        """
        if name not in self.bindings:
            raise ValueError(f"{location}: the macro is not defined in a line above")
        self.used.add(name)
        literal = repr(self.bindings[name].value)
        self._expanded += len(literal)
        if self._expanded > _MAX_EXPANDED:
            raise ValueError(
                f"{location}: the macros of this file expand to more than {_MAX_EXPANDED:,} characters; use fewer"
            )
        return literal


def parse_gin(text: str) -> dict[str, dict[str, object]]:
    """Parse a gin text into a tree such as `{"ppo": {"clip": 0.2}}`.

    Raises ValueError, with the line, for statements that are not data (imports, includes, references, scopes), for a
    macro that is not defined above or never used, macros that expand to more than 100,000 characters, broken syntax and
    a name that is given twice; and as `translate` does.
    """
    macros = _Macros()
    bindings: list[Binding] = []
    lines = text.splitlines() or [""]
    for line, tokens in _statements(text):
        location = f"line {line}: {_short_repr.repr(lines[line - 1].strip())}"
        name = _parse_name(location, tokens)
        value = _parse_value(location, tokens[tokens.index("=") + 1 :], macros)
        if name in macros.bindings or any(name == binding.name for binding in bindings):
            raise ValueError(f"line {line}: {name} is given twice")
        if "." in name:
            bindings.append(Binding(line, name, value))
        else:
            macros.bindings[name] = Binding(line, name, value)
    for name in macros.bindings.keys() - macros.used:
        raise ValueError(f"line {macros.bindings[name].line}: {name} is used nowhere: {_FIELD_SYNTAX}")
    tree: dict[str, dict[str, object]] = {}
    for line, name, value in translate(bindings):
        section, _, field = name.partition(".")
        if field in tree.setdefault(section, {}):
            raise ValueError(f"line {line}: {name} is given twice")
        tree[section][field] = value
    return tree


def _statements(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the tokens of every statement.

    A statement may continue over several lines inside brackets.
    """
    ignored = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
    tokens: list[str] = []
    first = end = 1
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            end = token.start[0]
            if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
                if tokens:
                    yield first, tokens
                tokens = []
            elif token.type not in ignored:
                first = first if tokens else token.start[0]
                tokens.append(token.string)
    except (tokenize.TokenError, SyntaxError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else end
        raise ValueError(f"line {line}: a bracket or a quote is not closed, or the indentation is broken") from None


def _parse_name(location: str, tokens: Sequence[str]) -> str:
    """Return the name on the left of `=`: that of a macro, or `section.field`.

    Raises ValueError if the statement is not a binding.
    """
    if tokens[0] in ("import", "from"):
        raise ValueError(f"{location} would run code, but a config file is read as data; remove it")
    if tokens[0] == "include":
        raise ValueError(f"{location}: includes are not supported; copy the content of that file")
    key = tokens[: tokens.index("=")] if "=" in tokens else []
    if "/" in key:
        raise ValueError(f"{location} has a scope: a config has one value per field")
    name = "".join(key)
    parts = name.split(".")
    if len(parts) > 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{location}: {_FIELD_SYNTAX}")
    return name


def _parse_value(location: str, tokens: Sequence[str], macros: _Macros) -> object:
    """Evaluate the tokens after `=` as a literal, with their macros expanded.

    Raises ValueError if they are not a literal.
    """
    if "@" in tokens:
        raise ValueError(f"{location} has a reference, which would run code; write its value")
    literal: list[str] = []
    for previous, token in zip(["", *tokens], tokens, strict=False):
        if previous == "%":
            literal[-1] = macros.expand(location, token)
        else:
            literal.append(token)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about literals such as "\d"
            value: object = ast.literal_eval(" ".join(literal))
    except (ValueError, TypeError, SyntaxError, MemoryError):
        raise ValueError(f"{location} has no plain value, {_VALUE_EXAMPLES}") from None
    return value
