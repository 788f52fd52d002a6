"""Config files: YAML, JSON and gin, read as data.

The YAML is that of the 1.2 core schema, where `off` is a word and `1e-3` a number; PyYAML's is 1.1, where they are not.
Tags, anchors and aliases are refused: a config has no use for them, and with them a small file stands for a huge one.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from json import JSONDecodeError
from pathlib import Path

import yaml

from lockstep.config import VERSION
from lockstep.config.gin import parse_gin

__all__ = ["format_yaml", "parse_yaml", "read"]


def read(path: Path) -> dict[str, object]:
    """The tree that a `.yaml`, `.yml`, `.json` or `.gin` file holds, without its `version`.

    Raises ValueError, in one line, for a file that is missing, of another kind or from a newer version, for broken
    syntax and for a key that is given twice.
    """
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ValueError(f"{path}: config files are .yaml, .yml, .json or .gin")
    try:
        text = path.read_text(encoding="utf-8")
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
    return _checked_version(tree, path)


def _checked_version(tree: dict[str, object], path: Path) -> dict[str, object]:
    version = tree.pop("version", VERSION)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ValueError(f"{path}: version is {version!r}: it must be a whole number from 1 to {VERSION}")
    if version > VERSION:
        raise ValueError(
            f"{path}: config version {version} is newer than this lockstep reads ({VERSION}): upgrade lockstep"
        )
    return tree


def parse_yaml(text: str) -> object:
    """The value of a YAML text. Raises ValueError, with the line, for broken syntax and keys given twice."""
    loader = _Loader(_printable(text))
    try:
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(line + " ".join((error.problem or error.context or "broken YAML").split())) from None
    finally:
        loader.dispose()


def _printable(text: str) -> str:
    bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if bad:
        raise ValueError(f"line {text.count(chr(10), 0, bad.start()) + 1}: {bad[0]!r} is no printable character")
    return text


class _Loader(yaml.SafeLoader):
    """See the module's docstring."""

    # the constructors below replace those of YAML 1.1; what is not named here is text
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) or getattr(event, "anchor", None):
            raise yaml.composer.ComposerError(
                None, None, "tags, anchors and aliases can't be used here", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
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


def _scalar(convert: Callable[[str], object]) -> Callable[[_Loader, yaml.ScalarNode], object]:
    return lambda loader, node: convert(node.value)


_DIGITS = r"[0-9]+(?:_[0-9]+)*"
for _kind, _pattern, _first, _convert in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""], lambda text: None),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF"), lambda text: text.lower() == "true"),
    ("int", rf"[-+]?{_DIGITS}", list("-+0123456789"), int),
    ("float", rf"[-+]?(?:\.[0-9]+|{_DIGITS}(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789"), float),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})\\Z"), _first)
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _scalar(_convert))


def parse_json(text: str) -> object:
    """The value of a JSON text. Raises ValueError, with the line, for broken syntax and keys given twice."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
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
    """The YAML that `parse_yaml` reads as `tree`: sections, with a line per field."""
    lines = []
    for section, fields in tree.items():
        lines += [f"{section}:", *(f"  {name}: {_format(value)}" for name, value in fields.items())]
    return "\n".join(lines)


def _format(value: object) -> str:
    """The value in one line: JSON, which YAML includes, but for text that can do without quotes."""
    if isinstance(value, str) and value.isprintable():
        with suppress(ValueError):
            if parse_yaml(f"a: {value}") == {"a": value}:
                return value
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)
