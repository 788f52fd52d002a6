"""Decode trees of plain values (from files and flags) into configs, with strict checks, and encode configs as trees.

The type of a field alone decides which values it accepts. Numbers may be text, because flags are text.
"""

import dataclasses
import math
import types
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from numbers import Integral, Real
from reprlib import Repr
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lockstep.config import Config
from lockstep.config.files import parse_yaml

__all__ = ["check_keys", "decode", "encode", "known_fields", "nearest_field"]

_TYPE_DESCRIPTIONS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    types.NoneType: "none",
}
"""Descriptions of the plain types, for error messages."""
_MAX_EXACT_INTEGER = 2**53
"""The magnitude up to which a float represents every whole number exactly."""
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_short_repr = Repr()
_short_repr.maxstring = _short_repr.maxother = _short_repr.maxlong = 60


def decode(tree: Mapping[str, object], default: Config) -> Config:
    """Return a copy of `default` with the fields that `tree` names, such as `{"env": {"count": 8}, …}`, set to its
    values.

    Raises ValueError, with a one-line message, for an unknown section or field (the message names the nearest known
    one), for a value of the wrong type (it describes the right one), and if a section rejects its values.
    """
    check_keys(tree)
    sections: dict[str, Any] = {}
    for name, content in tree.items():
        section = getattr(default, name)
        if content is None:
            continue
        if not isinstance(content, Mapping):
            raise ValueError(
                f"{name} is {_short_repr.repr(content)}: it must be a section with fields below it, such as {_example_field(name)}"
            )
        hints = get_type_hints(type(section))
        values = {key: _decode_value(value, hints[key], f"{name}.{key}") for key, value in content.items()}
        sections[name] = dataclasses.replace(section, **values)
    return dataclasses.replace(default, **sections)


def check_keys(tree: Mapping[str, object]) -> None:
    """Raise ValueError, with a one-line message, for an unknown section or field. The message names the nearest known one."""
    kinds = get_type_hints(Config)
    for name, content in tree.items():
        if name not in kinds:
            raise _unknown_key(str(name))
        fields = get_type_hints(kinds[name])
        for key in content if isinstance(content, Mapping) else ():
            if key not in fields:
                raise _unknown_key(f"{name}.{key}")


def encode(config: Config) -> dict[str, dict[str, object]]:
    """Return the config as a tree of plain values, which JSON can represent (tuples become lists).

    `decode` reverses this.
    """
    tree: dict[str, dict[str, object]] = {}
    for section, field, _ in known_fields():
        value = getattr(getattr(config, section), field)
        tree.setdefault(section, {})[field] = (
            list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, dict) else value
        )
    return tree


def known_sections() -> list[str]:
    """Return the names of all sections."""
    return [field.name for field in dataclasses.fields(Config)]


def known_fields() -> Iterator[tuple[str, str, Any]]:
    """Yield section, name and type of every field."""
    for section, kind in get_type_hints(Config).items():
        for field, hint in get_type_hints(kind).items():
            yield section, field, hint


def nearest_field(path: str) -> str | None:
    """Return the known `section.field`, of any section, that is most similar to `path`; None if none is similar enough."""
    section, _, field = path.rpartition(".")

    def similarity(known: tuple[str, str, Any]) -> float:
        return SequenceMatcher(None, field, known[1]).ratio() + 0.2 * SequenceMatcher(None, section, known[0]).ratio()

    best = max(known_fields(), key=similarity)
    return f"{best[0]}.{best[1]}" if similarity(best) >= 0.7 else None


def _unknown_key(path: str) -> ValueError:
    """Return the error for an unknown section or `section.field`."""
    section = path.partition(".")[0]
    path = _short_repr.repr(path)[1:-1]
    if "." in path:
        suggestion = nearest_field(path)
        if suggestion is None and section in known_sections():
            return ValueError(
                f"{path}: unknown key; the section {section} has no such field, and no field has a similar name; "
                "`lockstep train --help` lists all of them"
            )
    else:
        similarity = {known: SequenceMatcher(None, path, known).ratio() for known in known_sections()}
        best = max(similarity, key=lambda known: similarity[known])
        suggestion = best if similarity[best] >= 0.6 else nearest_field(path)
    sections = ", ".join(known_sections())
    return ValueError(
        f"{path}: unknown key; " + (f"did you mean {suggestion}?" if suggestion else f"the sections are {sections}")
    )


def _example_field(section: str) -> str:
    """Return the first `section.field` of a section, as an example."""
    return next(f"{name}.{field}" for name, field, _ in known_fields() if name == section)


def _invalid_value(value: object, hint: Any, path: str) -> ValueError:
    """Return the error for a value that does not have the type of its field."""
    # the only whole numbers that an int field rejects are floats, or text such as "1e20", above _MAX_EXACT_INTEGER
    if int in (hint, *get_args(hint)) and isinstance(value, (float, str)) and (_parse_float(value) or 0.5).is_integer():
        return ValueError(
            f"{path} is {_short_repr.repr(value)}: a whole number above 2**53 must be written in digits only"
        )
    return ValueError(f"{path} is {_short_repr.repr(value)}: it must be {_describe_type(hint)}")


def _describe_type(hint: Any) -> str:
    """Describe the values of a type, for error messages."""
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(_describe_type(member) for member in arguments)
    if kind is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(arguments)
    if kind is tuple:
        return f"a list, each {_describe_type(arguments[0])}"
    if kind is dict:
        return "keys with plain values, such as {continuous: true}"
    return _TYPE_DESCRIPTIONS[hint]


def _decode_value(value: object, hint: Any, path: str) -> object:
    """Return the value converted to the type `hint` of field `path`.

    Raises ValueError if it does not have that type.
    """
    kind, arguments, value = get_origin(hint), get_args(hint), _plain_number(value)
    if kind in (Union, types.UnionType):
        return _decode_union(value, hint, path)
    if kind is Literal:
        return _decode_choice(value, hint, path)
    if kind is tuple:
        parts = _split_list(value)
        return tuple(_decode_value(part, arguments[0], f"{path}[{index}]") for index, part in enumerate(parts))
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
            raise ValueError(f"{path} is {_short_repr.repr(value)}: it must be text; put it in quotes")
    elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
        number = _parse_int(value) if hint is int else _parse_float(value)
        if number is not None:
            return number
    raise _invalid_value(value, hint, path)


def _decode_union(value: object, hint: Any, path: str) -> object:
    """Return the value as the first member of the union that accepts it."""
    members = [member for member in get_args(hint) if member is not types.NoneType]
    if len(members) < len(get_args(hint)) and (
        value is None or (isinstance(value, str) and value.strip().lower() in ("none", "null"))
    ):
        return None
    for member in members[:-1]:
        try:
            return _decode_value(value, member, path)
        except ValueError:
            continue
    try:
        return _decode_value(value, members[-1], path)
    except ValueError:
        if len(members) == 1 and get_origin(members[0]) is not None:
            raise  # the error of a list, a choice or a mapping is more specific
        raise _invalid_value(value, hint, path) from None


def _decode_choice(value: object, hint: Any, path: str) -> object:
    """Return the value if it is one of the choices of a `Literal`. The error suggests the nearest choice."""
    choices = get_args(hint)
    if isinstance(value, str) and value in choices:
        return value
    similarity = {choice: SequenceMatcher(None, str(value), choice).ratio() for choice in choices}
    best = max(choices, key=lambda choice: similarity[choice])
    problem = str(_invalid_value(value, hint, path))
    raise ValueError(f"{problem}; did you mean {best}?" if similarity[best] >= 0.6 and len(choices) > 1 else problem)


def _decode_mapping(value: object, hint: Any, path: str) -> object:
    """Return a mapping from names to plain values as a dict.

    Text is read as YAML, such as `{continuous: true}` from a flag.
    """
    if isinstance(value, str):
        try:
            value = parse_yaml(value)
        except ValueError:
            raise _invalid_value(value, hint, path) from None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _invalid_value(value, hint, path)
    plain = {key: _plain_number(item) for key, item in value.items()}
    for key, item in plain.items():
        if type(item) not in get_args(get_args(hint)[1]) or (isinstance(item, float) and not math.isfinite(item)):
            raise ValueError(
                f"{path}: {_short_repr.repr(key)} is {_short_repr.repr(item)}: it must be true, false, a number or text"
            )
    return plain


def _split_list(value: object) -> list[object]:
    """Return the items of a list. Text is split as by `_split_text`; another value becomes a list of one item."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, str):
        items = _split_text(value)
        in_brackets = len(items) == 1 and items[0][0] + items[0][-1] in ("[]", "()")
        return list(_split_text(items[0][1:-1]) if in_brackets else items)
    return [value]


def _split_text(text: str) -> list[str]:
    """Split text at commas and spaces, except for those in brackets, and in quotes inside of brackets."""
    items, closing, quote = [""], list[str](), ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif closing and character in "'\"":
            quote = character
        elif character in _BRACKETS:
            closing.append(_BRACKETS[character])
        elif closing and character == closing[-1]:
            closing.pop()
        if closing or not (character == "," or character.isspace()):
            items[-1] += character
        else:
            items.append("")
    return [item for item in items if item]


def _plain_number(value: object) -> object:
    """Return a number of another type, such as those of NumPy, as an int or a float; other values as they are."""
    if type(value).__name__ in ("bool", "bool_"):  # NumPy's is no Integral, and is not imported for this
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    number = _parse_float(value) if isinstance(value, Real) else None  # type: ignore[arg-type]  # mypy does not know that floats are Real
    return value if number is None else number


def _parse_int(value: float | str) -> int | None:
    """Return a whole number as an int; None for other values, and for floats above 2**53, which may have been rounded."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    number = _parse_float(value)
    return int(number) if number is not None and number.is_integer() and abs(number) <= _MAX_EXACT_INTEGER else None


def _parse_float(value: float | str) -> float | None:
    """Return a number as a finite float, or None for another value."""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
