"""Trees of plain values (from files and flags) to configs and back, strictly.

What a value may look like follows from the type of its field alone. Numbers may be text, because flags are text.
"""

import dataclasses
import math
import types
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from reprlib import Repr
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lockstep.config import Config
from lockstep.config.files import parse_yaml

__all__ = ["decode", "encode", "known_fields", "nearest_field"]

_WANTED = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text", types.NoneType: "none"}
_EXACT = 2**53
_shown = Repr()
_shown.maxstring = _shown.maxother = _shown.maxlong = 60


def decode(tree: Mapping[str, object], default: Config) -> Config:
    """`default` with the fields that `tree` names, `{"env": {"count": 8}, …}`, set to its values.

    Raises ValueError in one line: for an unknown section or field the nearest known one, for a value of the wrong type
    what would be right, and whatever a section itself finds wrong.
    """
    sections: dict[str, Any] = {}
    for name, content in tree.items():
        section = getattr(default, name, None) if name in known_sections() else None
        if section is None:
            raise _unknown(str(name))
        if content is None:
            continue
        if not isinstance(content, Mapping):
            raise ValueError(
                f"{name} is {_shown.repr(content)}: it must be a section with fields below it, such as {_example(name)}"
            )
        hints = get_type_hints(type(section))
        values = {}
        for key, value in content.items():
            if key not in hints:
                raise _unknown(f"{name}.{key}")
            values[key] = _decode(value, hints[key], f"{name}.{key}")
        sections[name] = dataclasses.replace(section, **values)
    return dataclasses.replace(default, **sections)


def encode(config: Config) -> dict[str, dict[str, object]]:
    """The tree of plain values (JSON-able: tuples as lists) that `decode` makes `config` from."""
    tree: dict[str, dict[str, object]] = {}
    for section, field, _ in known_fields():
        value = getattr(getattr(config, section), field)
        tree.setdefault(section, {})[field] = (
            list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, dict) else value
        )
    return tree


def known_sections() -> list[str]:
    """Names of the sections."""
    return [field.name for field in dataclasses.fields(Config)]


def known_fields() -> Iterator[tuple[str, str, Any]]:
    """Section, name and type of every field."""
    for section, kind in get_type_hints(Config).items():
        for field, hint in get_type_hints(kind).items():
            yield section, field, hint


def nearest_field(path: str) -> str | None:
    """The known `section.field` that is most like `path`, in any section; None when none is."""
    section, _, field = path.rpartition(".")

    def likeness(known: tuple[str, str, Any]) -> float:
        return SequenceMatcher(None, field, known[1]).ratio() + 0.2 * SequenceMatcher(None, section, known[0]).ratio()

    best = max(known_fields(), key=likeness)
    return f"{best[0]}.{best[1]}" if likeness(best) >= 0.7 else None


def _unknown(path: str) -> ValueError:
    path = _shown.repr(path)[1:-1]
    if "." in path:
        near = nearest_field(path)
    else:
        likeness = {known: SequenceMatcher(None, path, known).ratio() for known in known_sections()}
        best = max(likeness, key=lambda known: likeness[known])
        near = best if likeness[best] >= 0.6 else nearest_field(path)
    sections = ", ".join(known_sections())
    return ValueError(f"{path}: unknown key; " + (f"did you mean {near}?" if near else f"the sections are {sections}"))


def _example(section: str) -> str:
    return next(f"{name}.{field}" for name, field, _ in known_fields() if name == section)


def _wrong(value: object, hint: Any, path: str) -> ValueError:
    if int in (hint, *get_args(hint)) and isinstance(value, (float, str)) and (_finite(value) or 0.5).is_integer():
        return ValueError(f"{path} is {_shown.repr(value)}: a whole number above 2**53 must be written in digits alone")
    return ValueError(f"{path} is {_shown.repr(value)}: it must be {_wanted(hint)}")


def _wanted(hint: Any) -> str:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(_wanted(member) for member in arguments)
    if kind is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(arguments)
    if kind is tuple:
        return f"a list, each {_wanted(arguments[0])}"
    if kind is dict:
        return "keys with plain values, such as {continuous: true}"
    return _WANTED[hint]


def _decode(value: object, hint: Any, path: str) -> object:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return _decode_union(value, hint, path)
    if kind is Literal:
        return _decode_choice(value, hint, path)
    if kind is tuple:
        parts = _parts(value)
        return tuple(_decode(part, arguments[0], f"{path}[{place}]") for place, part in enumerate(parts))
    if kind is dict:
        return _decode_mapping(value, hint, path)
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
    elif hint is str:
        if isinstance(value, str):
            return value
        if isinstance(value, (int, float)):
            raise ValueError(f"{path} is {_shown.repr(value)}: it must be text; put it in quotes")
    elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
        number = _whole(value) if hint is int else _finite(value)
        if number is not None:
            return number
    raise _wrong(value, hint, path)


def _decode_union(value: object, hint: Any, path: str) -> object:
    members = [member for member in get_args(hint) if member is not types.NoneType]
    if len(members) < len(get_args(hint)) and (
        value is None or (isinstance(value, str) and value.strip().lower() in ("none", "null"))
    ):
        return None
    for member in members[:-1]:
        try:
            return _decode(value, member, path)
        except ValueError:
            continue
    try:
        return _decode(value, members[-1], path)
    except ValueError:
        if len(members) == 1 and get_origin(members[0]) is not None:
            raise
        raise _wrong(value, hint, path) from None


def _decode_choice(value: object, hint: Any, path: str) -> object:
    choices = get_args(hint)
    if isinstance(value, str) and value in choices:
        return value
    likeness = {choice: SequenceMatcher(None, str(value), choice).ratio() for choice in choices}
    best = max(choices, key=lambda choice: likeness[choice])
    problem = str(_wrong(value, hint, path))
    raise ValueError(f"{problem}; did you mean {best}?" if likeness[best] >= 0.6 and len(choices) > 1 else problem)


def _decode_mapping(value: object, hint: Any, path: str) -> object:
    if isinstance(value, str):
        try:
            value = parse_yaml(value)
        except ValueError:
            raise _wrong(value, hint, path) from None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong(value, hint, path)
    for key, part in value.items():
        if type(part) not in get_args(get_args(hint)[1]) or (isinstance(part, float) and not math.isfinite(part)):
            raise ValueError(
                f"{path}: {_shown.repr(key)} is {_shown.repr(part)}: it must be true, false, a number or text"
            )
    return dict(value)


def _parts(value: object) -> list[object]:
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, str):
        return list(value.strip().strip("[]()").replace(",", " ").split())
    return [value]


def _whole(value: float | str) -> int | None:
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    number = _finite(value)
    return int(number) if number is not None and number.is_integer() and abs(number) <= _EXACT else None


def _finite(value: float | str) -> float | None:
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
