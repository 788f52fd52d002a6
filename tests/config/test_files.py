from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.config import VERSION, Config
from lockstep.config.decode import decode
from lockstep.config.files import format_yaml, parse_json, parse_yaml, read


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problem(path: Path) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        read(path)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(str(path))


def test_yaml_and_json_give_the_same_tree(tmp_path: Path) -> None:
    yaml = write(tmp_path, "a.yaml", f"version: {VERSION}\nenv: {{id: Reacher-v5, count: 4}}\nppo:\n  clip: 1e-1\n")
    json = write(tmp_path, "a.json", '{"env": {"id": "Reacher-v5", "count": 4}, "ppo": {"clip": 0.1}}')
    assert read(yaml) == read(json)
    assert read(yaml).tree == {"env": {"id": "Reacher-v5", "count": 4}, "ppo": {"clip": 0.1}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("no", "no"),
        ("true", True),
        ("1e-3", 1e-3),
        ("1e5", 1e5),
        ("100_000", 100_000),
        ("010", 10),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("-1.5", -1.5),
        (".5", 0.5),
        ("~", None),
        ("", None),
        ("'5'", "5"),
        (".nan", ".nan"),
        ("[1, a]", [1, "a"]),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    assert parse_yaml(text) == value
    assert type(parse_yaml(text)) is type(value)


def test_off_is_text(tmp_path: Path) -> None:
    tree = read(write(tmp_path, "a.yaml", "run:\n  progress: off\n")).tree
    assert decode(tree, Config()).run.progress == "off"


def test_an_empty_file_is_an_empty_tree(tmp_path: Path) -> None:
    assert read(write(tmp_path, "a.yaml", "# nothing yet\n")) == (VERSION, {})


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.toml", "", ": a config file must end in .yaml, .yml, .json or .gin"),
        (
            "a.gin",
            "ppo.clip = 0.2\nimport os",
            ": line 2: 'import os' would run code, but a config file is read as data; remove it",
        ),
        (
            "a.gin",
            f"ppo.clip = {'[' * 9999}",
            ": line 1: a bracket or a quote is not closed, or the indentation is broken",
        ),
        ("a.yaml", "env:\n  id: [1\nppo: {}\n", ": line 3: expected ',' or ']', but got ':'"),
        ("a.yaml", "env:\n  id: a\n  id: b\n", ": line 3: 'id' is given twice"),
        ("a.yaml", "env: {}\nenv: {}\n", ": line 2: 'env' is given twice"),
        ("a.yaml", "a: &x [1]\nb: *x\n", ": line 1: tags, anchors and aliases are not supported"),
        (
            "a.yaml",
            "a: !!python/object/apply:os.system [ls]\n",
            ": line 1: tags, anchors and aliases are not supported",
        ),
        ("a.yaml", "env:\n  [1, 2]: 3\n", ": line 2: a key can't be a list or a mapping"),
        ("a.yaml", "env: {{a: 1}: 3}\n", ": line 1: a key can't be a list or a mapping"),
        ("a.yaml", "env:\n  ? - a\n    - b\n  : 3\n", ": line 2: a key can't be a list or a mapping"),
        ("a.yaml", "a: 1\nb: \x07\n", ": line 2: '\\x07' is not a printable character"),
        ("a.yaml", "- 1\n", ": it must hold sections, such as `env:`, with fields below them"),
        ("a.yaml", "a: 1\n---\nb: 1\n", ": line 2: but found another document"),
        ("a.yaml", "[" * 1500, ": it is nested too deeply"),
        ("a.json", "[" * 99999, ": it is nested too deeply"),
        ("a.json", '{"env":\n {"id": }}', ": line 2: Expecting value"),
        ("a.json", '{"env": {"id": "a", "id": "b"}}', ": 'id' is given twice"),
        ("a.json", "[]", ": it must hold sections, such as `env:`, with fields below them"),
        ("a.yaml", "version: x\n", f": version is 'x': it must be a whole number from 1 to {VERSION}"),
        ("a.yaml", "version: 0\n", f": version is 0: it must be a whole number from 1 to {VERSION}"),
    ],
)
def test_invalid_files_are_reported_in_one_line(tmp_path: Path, name: str, text: str, line: str) -> None:
    assert problem(write(tmp_path, name, text)) == line


def test_message_about_a_newer_version_says_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", f"version: {VERSION + 1}\n")
    expected = f": config version {VERSION + 1} is newer than this lockstep reads ({VERSION}): upgrade lockstep"
    assert problem(path) == expected


def test_unreadable_files_are_reported_in_one_line(tmp_path: Path) -> None:
    assert problem(tmp_path / "none.yaml") == ": there is no such file"
    (tmp_path / "folder.yaml").mkdir()
    assert problem(tmp_path / "folder.yaml") == ": it can't be read (it is not a regular file)"
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\n")
    assert problem(tmp_path / "latin.yaml") == ": it must be UTF-8 text"


@given(st.text() | st.text(alphabet="ab: {}[]-\n'\"#&*!|>,?%@`12.\t"))
def test_random_texts_raise_only_one_line_errors(text: str) -> None:
    for parse in (parse_yaml, parse_json):
        line = "no problem"
        try:
            parse(text)
        except ValueError as error:
            line = str(error)
        assert len(line.splitlines()) == 1


@given(
    st.text(st.characters(max_codepoint=0xFFFF))
    | st.sampled_from(["off", "null", "1e3", "a: b", "a #b", "'", "linear(1e-3, 0)", "[1", "- a", "é"])
)
def test_parse_yaml_reverses_format_yaml(text: str) -> None:
    tree = {
        "run": {"name": text, "seed": 3, "loggers": [text]},
        "env": {"options": {"a": text, "b": 1e-9}, "module": None},
    }
    assert parse_yaml(format_yaml(tree)) == tree


def test_yaml_is_printed_in_block_style() -> None:
    tree = {"env": {"id": "CartPole-v1", "options": {}}, "ppo": {"learning_rate": "linear(3e-4, 0)", "kl_stop": None}}
    expected = "env:\n  id: CartPole-v1\n  options: {}\nppo:\n  learning_rate: linear(3e-4, 0)\n  kl_stop: null"
    assert format_yaml(tree) == expected
