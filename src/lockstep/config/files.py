"""Config files: YAML, JSON and gin, read as data.

YAML files follow the core schema of YAML 1.2, in which `off` is text and `1e-3` is a number. PyYAML implements YAML
1.1, in which `off` is a boolean and `1e-3` is text. Tags, anchors and aliases are refused: a config does not need them,
and aliases let a small file expand to a huge tree.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from json import JSONDecodeError
from pathlib import Path
from typing import NamedTuple

import yaml

from lockstep.config import VERSION
from lockstep.config.gin import parse_gin
from lockstep.config.versions import check_version, with_present_names
from lockstep.files import CONFIG_LIMIT, read_file

__all__ = ["VersionedTree", "format_yaml", "parse_yaml", "read"]


class VersionedTree(NamedTuple):
    """Content of a config file."""

    version: int
    """Version of the format; `VERSION` if the file does not give it."""
    tree: dict[str, object]
    """Sections and dotted keys."""


def read(path: Path) -> VersionedTree:
    """Read a `.yaml`, `.yml`, `.json` or `.gin` file.

    Raises ValueError, with a one-line message, if the file is missing, can't be read, has another extension or a newer
    version, if its syntax is broken, or if it gives a key twice.
    """
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ValueError(f"{path}: a config file must end in .yaml, .yml, .json or .gin")
    try:
        text = read_file(path, CONFIG_LIMIT).decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: it must be UTF-8 text") from None
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ValueError(f"{path}: it can't be read ({error.strerror})") from None
    try:
        tree = parse(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except RecursionError:
        raise ValueError(f"{path}: it is nested too deeply") from None
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ValueError(f"{path}: it must hold sections, such as `env:`, with fields below them")
    version = check_version(tree.pop("version", VERSION), path)
    return VersionedTree(version, with_present_names(tree))


def parse_yaml(text: str) -> object:
    """Parse a YAML text. Raises ValueError, with the line, if the syntax is broken or a key is given twice."""
    loader = _Loader(_check_printable(text))
    try:
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(line + " ".join((error.problem or error.context or "broken YAML").split())) from None
    finally:
        loader.dispose()


def _check_printable(text: str) -> str:
    """Return the text unchanged. Raises ValueError, with the line, if it has a character that YAML does not allow."""
    match = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if match:
        raise ValueError(f"line {text.count(chr(10), 0, match.start()) + 1}: {match[0]!r} is not a printable character")
    return text


class _Loader(yaml.SafeLoader):
    """YAML loader for the core schema of YAML 1.2, without tags, anchors, aliases and duplicate keys."""

    # the loop below adds the resolvers of YAML 1.2 in place of those of YAML 1.1; a scalar that matches none is text
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node. Raises ComposerError for a tag, an anchor or an alias."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) or getattr(event, "anchor", None):
            raise yaml.composer.ComposerError(
                None, None, "tags, anchors and aliases are not supported", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """Construct a mapping. Raises ConstructorError for a key that is not a scalar and for a duplicate key."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key can't be a list or a mapping", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _scalar_constructor(convert: Callable[[str], object]) -> Callable[[_Loader, yaml.ScalarNode], object]:
    """Return a PyYAML constructor that converts the text of a scalar."""
    return lambda loader, node: convert(node.value)


_DIGITS = r"[0-9]+(?:_[0-9]+)*"
for _kind, _pattern, _first, _convert in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""], lambda text: None),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF"), lambda text: text.lower() == "true"),
    ("int", rf"[-+]?{_DIGITS}", list("-+0123456789"), int),
    ("float", rf"[-+]?(?:\.[0-9]+|{_DIGITS}(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789"), float),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})\\Z"), _first)
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _scalar_constructor(_convert))


def parse_json(text: str) -> object:
    """Parse a JSON text.

    Raises ValueError if the syntax is broken (the message has the line) or a key is given twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_refuse_duplicate_keys)
    except JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None


def _refuse_duplicate_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the pairs of a JSON object as a dict. Raises ValueError for a duplicate key."""
    tree = dict(pairs)
    if len(tree) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return tree


_PARSERS: dict[str, Callable[[str], object]] = {
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
    ".json": parse_json,
    ".gin": parse_gin,
}


def format_yaml(tree: Mapping[str, Mapping[str, object]]) -> str:
    """Format a tree as YAML text, with one line per section and per field. `parse_yaml` reverses this."""
    lines = []
    for section, fields in tree.items():
        lines += [f"{section}:", *(f"  {name}: {_format_value(value)}" for name, value in fields.items())]
    return "\n".join(lines)


def _format_value(value: object) -> str:
    """Format a value in one line: as JSON, which is valid YAML, but text without quotes where YAML reads it as text."""
    if isinstance(value, str) and value.isprintable():
        with suppress(ValueError):
            if parse_yaml(f"a: {value}") == {"a": value}:
                return value
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)
