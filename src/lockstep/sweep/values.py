"""Parser of the swept values and search spaces on the command line of `lockstep sweep`."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lockstep.config.fields import NEVER_SWEPT_FIELDS
from lockstep.config.flags import find_field

__all__ = ["SEED", "Search", "combinations", "merge_values", "read_over", "read_search"]

SEED = "run.seed"
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_SPACE = re.compile(r"(log|float|int)\(([^(),]*),([^(),]*)\)")
_MAX_RANGE = 100_000
"""Largest number of values in a range. A larger range is probably a typing error."""


@dataclass(frozen=True)
class Search:
    """Search space of one field."""

    kind: str
    """Kind of the space. `float`: numbers between `low` and `high`; `log`: the same on a logarithmic scale; `int`: integers; `choice`: one of
    `choices`."""
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    @property
    def ends(self) -> tuple[str, ...]:
        """Values that are checked against the field: both bounds and a number between them, or all choices."""
        if self.kind == "choice":
            return self.choices
        if self.kind == "int":
            return str(int(self.low)), str(int(self.high))
        # the golden ratio: the number in between is not an integer, so that integer fields reject a space of floats
        return repr(self.low), repr(self.high), repr(self.low + 0.6180339887 * (self.high - self.low))


def read_over(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Parse `--over`, such as `ppo.learning_rate=1e-3,linear(3e-4, 0)`, to values by field. Raises ValueError if a field does not exist."""
    values: dict[str, list[str]] = {}
    for argument in arguments:
        path, text = _field(argument, "--over", values)
        values[path] = [value for part in _parts(text) for value in _range(part, argument)]
    return values


def read_search(arguments: Sequence[str]) -> dict[str, Search]:
    """Parse the values of `--search`. Return the search spaces by field.

    Examples: `ppo.learning_rate=log(1e-5, 1e-2)`, `ppo.epochs=int(1, 20)`, `ppo.gamma=float(0.9, 1)`, `policy.activation=tanh,relu`. Raises
    ValueError if a field does not exist or its space is invalid. The message is one line.
    """
    spaces: dict[str, Search] = {}
    for argument in arguments:
        path, text = _field(argument, "--search", spaces)
        if path == SEED:  # a trial is judged over seeds, and tables group runs by their other values
            raise ValueError(f"--search {argument}: {SEED} cannot be searched; use --over, such as --over {SEED}=1..5")
        space = _SPACE.fullmatch(text.replace(" ", ""))
        spaces[path] = _space(space, argument) if space else Search("choice", choices=tuple(_parts(text)))
    return spaces


def combinations(over: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """Yield all combinations of values. The values of the last field change fastest."""
    for values in itertools.product(*over.values()):
        yield dict(zip(over, values, strict=True))


def merge_values(
    tree: Mapping[str, Mapping[str, object]], values: Mapping[str, str]
) -> dict[str, Mapping[str, object]]:
    """Return the tree of command-line flags, with the values of a combination added."""
    merged = {section: dict(content) for section, content in tree.items()}
    for path, value in values.items():
        section, _, field = path.partition(".")
        merged.setdefault(section, {})[field] = value
    return dict(merged)


def _field(argument: str, flag: str, earlier: Mapping[str, object]) -> tuple[str, str]:
    """Split `FIELD=VALUES` into the full name of the field and the text of its values. `earlier` has the fields given before."""
    name, equals, text = argument.partition("=")
    if not equals or not name.strip() or not text.strip():
        raise ValueError(f"{flag} is {argument!r}: it must be a field and its values, such as run.seed=1..5")
    try:
        path = find_field(name.strip())
    except ValueError as error:
        problem = str(error).partition(": ")[2].replace("unknown flag", "there is no such field")
        raise ValueError(f"{flag} {argument}: {problem}") from None
    if path in NEVER_SWEPT_FIELDS:
        raise ValueError(f"{flag} {argument}: {path} cannot be swept")
    if path in earlier:
        raise ValueError(f"{flag} {argument}: {path} is given twice")
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
        raise ValueError(f"{text!r}: a value before or after a comma is missing")
    return [part.strip() for part in parts]


def _range(part: str, argument: str) -> list[str]:
    match = _RANGE.fullmatch(part)
    if match is None:
        return [part]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _MAX_RANGE:
        raise ValueError(f"--over {argument}: {part} must be an increasing range of at most {_MAX_RANGE:,} values")
    return [str(value) for value in range(first, last + 1)]


def _space(match: re.Match[str], argument: str) -> Search:
    kind = match[1]
    try:
        low, high = (float(int(text)) if kind == "int" else float(text) for text in match.groups()[1:])
    except ValueError:
        low, high = 1.0, 0.0
    if not low < high < float("inf") or low == -float("inf") or (kind == "log" and low <= 0):
        numbers = "integers" if kind == "int" else "numbers above 0" if kind == "log" else "numbers"
        raise ValueError(f"--search {argument}: {kind} takes two {numbers}, the smaller one first")
    return Search(kind, low, high)
