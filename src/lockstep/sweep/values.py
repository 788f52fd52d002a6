"""What differs between the runs of a sweep, as it is written on the command line."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lockstep.config.flags import find_field

__all__ = ["SEED", "Search", "combinations", "read_over", "read_search", "taken_from"]

SEED = "run.seed"
_NOT_SWEPT = ("run.name", "run.folder", "run.progress", "env.module")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_SPACE = re.compile(r"(log|float|int)\(([^(),]*),([^(),]*)\)")
_MOST = 100_000
"""Values of a range: more were a slip of the hand."""


@dataclass(frozen=True)
class Search:
    """Where a field's values are looked for."""

    kind: str
    """`log` and `float`: numbers between `low` and `high`, evenly in their logarithm or as they are; `int`: whole ones; `choice`."""
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    @property
    def ends(self) -> tuple[str, ...]:
        """Values that show whether the field takes what lies in here: the ends and something between them, or all choices."""
        if self.kind == "choice":
            return self.choices
        if self.kind == "int":
            return str(int(self.low)), str(int(self.high))
        # the golden section: no whole number, if the ends are some
        return repr(self.low), repr(self.high), repr(self.low + 0.6180339887 * (self.high - self.low))


def read_over(words: Sequence[str]) -> dict[str, list[str]]:
    """Values by field, from words such as `run.seed=1..5` and `ppo.learning_rate=1e-3,linear(3e-4, 0)`.

    Commas inside of brackets do not part values. Raises ValueError, in one line, for what is no field or has no values.
    """
    found: dict[str, list[str]] = {}
    for word in words:
        path, text = _field(word, "--over", found)
        found[path] = [value for part in _parts(text) for value in _range(part, word)]
    return found


def read_search(words: Sequence[str]) -> dict[str, Search]:
    """Where to look, by field, from words such as `ppo.learning_rate=log(1e-5, 1e-2)`, `ppo.epochs=int(1, 20)`, `ppo.gamma=float(0.9, 1)` and
    `policy.activation=tanh,relu`. Raises ValueError, in one line.
    """
    found: dict[str, Search] = {}
    for word in words:
        path, text = _field(word, "--search", found)
        space = _SPACE.fullmatch(text.replace(" ", ""))
        found[path] = _space(space, word) if space else Search("choice", choices=tuple(_parts(text)))
    return found


def combinations(over: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """Every value of every field with every other; the last field's change fastest."""
    for values in itertools.product(*over.values()):
        yield dict(zip(over, values, strict=True))


def taken_from(tree: Mapping[str, Mapping[str, object]], values: Mapping[str, str]) -> dict[str, Mapping[str, object]]:
    """The tree of flags with a combination's values in it."""
    merged = {section: dict(content) for section, content in tree.items()}
    for path, value in values.items():
        section, _, field = path.partition(".")
        merged.setdefault(section, {})[field] = value
    return dict(merged)


def _field(word: str, flag: str, found: Mapping[str, object]) -> tuple[str, str]:
    name, equals, text = word.partition("=")
    if not equals or not name.strip() or not text.strip():
        raise ValueError(f"{flag} is {word!r}: it must be a field and its values, such as run.seed=1..5")
    try:
        path = find_field(name.strip())
    except ValueError as error:
        problem = str(error).partition(": ")[2].replace("unknown flag", "there is no such field")
        raise ValueError(f"{flag} {word}: {problem}") from None
    if path in _NOT_SWEPT:
        raise ValueError(f"{flag} {word}: {path} is the sweep's own matter")
    if path in found:
        raise ValueError(f"{flag} {word}: {path} is given twice")
    return path, text.strip()


def _parts(text: str) -> list[str]:
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    if not all(part.strip() for part in parts):
        raise ValueError(f"{text!r}: there is a value missing beside a comma")
    return [part.strip() for part in parts]


def _range(part: str, word: str) -> list[str]:
    match = _RANGE.fullmatch(part)
    if match is None:
        return [part]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _MOST:
        raise ValueError(f"--over {word}: {part} must go up, by less than {_MOST:,}")
    return [str(value) for value in range(first, last + 1)]


def _space(match: re.Match[str], word: str) -> Search:
    kind = match[1]
    try:
        low, high = (float(int(text)) if kind == "int" else float(text) for text in match.groups()[1:])
    except ValueError:
        low, high = 1.0, 0.0
    if not low < high < float("inf") or low == -float("inf") or (kind == "log" and low <= 0):
        wanted = "whole numbers" if kind == "int" else "numbers above 0" if kind == "log" else "numbers"
        raise ValueError(f"--search {word}: {kind} takes two {wanted}, the smaller first")
    return Search(kind, low, high)
