"""Every config field as a flag: `--section.field VALUE`."""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from lockstep.config.decode import known_fields, nearest_field

__all__ = ["SHORT", "as_flags", "as_text", "find_field", "parse_flags"]

SHORT = {
    "env": "env.id",
    "plan": "plan.kind",
    "seed": "run.seed",
    "name": "run.name",
    "total_steps": "run.total_steps",
    "out": "run.folder",
}
"""Flags that stand for a longer one, without their dashes."""


def parse_flags(
    argv: Sequence[str], own: Sequence[str] = ("--ranks", "--config")
) -> tuple[dict[str, dict[str, object]], list[str]]:
    """Takes the config's flags out of a command line.

    Values stay as they were typed: `decode` reads them, so that files and flags are judged alike.

    Args:
        argv: Words after the verb.
        own: Flags that the verb itself reads. They, their values and all words that belong to no flag are left over.

    Returns:
        The tree of fields that were given, and the words left over, in order.

    Raises ValueError in one line for an unknown flag (the nearest is named), a flag given twice and a missing value.
    """
    kinds = {f"{section}.{field}": hint for section, field, hint in known_fields()}
    tree: dict[str, dict[str, object]] = {}
    words = list(argv)
    rest: list[str] = []
    while words:
        word = words.pop(0)
        if word == "--":
            return tree, rest + words
        name, equals, text = word.partition("=")
        if not _is_flag(word) or name in own or name in ("-h", "--help"):
            rest.append(word)
            continue
        path, negated = _find(name, kinds, own)
        section, _, field = path.partition(".")
        if field in tree.setdefault(section, {}):
            raise ValueError(f"{name}: {path} is given twice")
        given = [text] if equals else None
        tree[section][field] = (
            _switched_off(name, kinds[path], given) if negated else _take(name, kinds[path], given, words)
        )
    return tree, rest


def as_flags(tree: Mapping[str, Mapping[str, object]]) -> list[str]:
    """The words that `parse_flags` reads as `tree`, whose values are plain: `["--ppo.clip", "0.1"]`."""
    short = {path: flag for flag, path in SHORT.items()}
    words = []
    for section, fields in tree.items():
        for field, value in fields.items():
            path = f"{section}.{field}"
            flag = f"--{short.get(path, path).replace('_', '-')}"
            given = [as_text(part) for part in value] if isinstance(value, (list, tuple)) else [as_text(value)]
            words += [f"{flag}={given[0]}"] if len(given) == 1 and _is_flag(given[0]) else [flag, *given]
    return words


def as_text(value: object) -> str:
    """A plain value of a field as a flag takes it."""
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return " ".join(map(as_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def find_field(name: str) -> str:
    """The path, `section.field`, of a field that is named as its flag is, without the dashes. Raises ValueError, naming the nearest."""
    kinds = {f"{section}.{field}": hint for section, field, hint in known_fields()}
    path, negated = _find(f"--{name}", kinds, ())
    if negated:
        raise ValueError(f"{name}: give the field itself, with true or false")
    return path


def _is_flag(word: str) -> bool:
    """Whether it begins with a dash and is no negative number."""
    return re.match(r"-(?![\d.]|$)", word) is not None


def _find(name: str, kinds: Mapping[str, Any], own: Sequence[str]) -> tuple[str, bool]:
    """The field's path and whether it is switched off, as in `--no-policy.shared` and `--policy.no-shared`."""
    plain = name.removeprefix("--").replace("-", "_")
    positive = re.sub(r"(^|\.)no_", r"\1", plain, count=1)
    for candidate, negated in ((plain, False), (positive, True)):
        path = SHORT.get(candidate, candidate)
        if name.startswith("--") and path in kinds:
            return path, negated
    raise ValueError(f"{' '.join(name.split())}: unknown flag" + _suggestion(plain, own))


def _suggestion(plain: str, own: Sequence[str]) -> str:
    near = nearest_field(plain) if "." in plain else None
    if near is None:
        plainer = {flag.removeprefix("--").replace("-", "_"): flag for flag in (*SHORT, *own, "--help")}
        close = get_close_matches(plain, plainer, 1)
        near = plainer[close[0]].removeprefix("--") if close else nearest_field(plain)
    return f"; did you mean --{near.replace('_', '-')}?" if near else "; --help lists all flags"


def _switched_off(name: str, kind: Any, given: list[str] | None) -> str:
    if kind is not bool:
        raise ValueError(
            f"{name}: only a switch can be negated; give --{name.removeprefix('--no-').removeprefix('--')} a value"
        )
    if given:
        raise ValueError(f"{name} takes no value")
    return "false"


def _take(name: str, kind: Any, given: list[str] | None, words: list[str]) -> object:
    """The flag's value: from behind its `=`, else from the words that follow, which are taken out."""
    if any(get_origin(one) is tuple for one in (kind, *get_args(kind))):  # a list, or a list that may be none
        if given is None:
            end = next((place for place, word in enumerate(words) if _is_flag(word)), len(words))
            given = words[:end]
            del words[:end]
        return given[0] if len(given) == 1 else given
    if given:
        return given[0]
    if kind is bool:
        return words.pop(0) if words and words[0].lower() in ("true", "false") else "true"
    if not words or _is_flag(words[0]):
        raise ValueError(f"{name} needs a value")
    return words.pop(0)
