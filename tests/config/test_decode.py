import dataclasses
import json
import types
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.config import Config
from lockstep.config.decode import _split_list, decode, encode, known_fields


def decoded(section: str, field: str, value: object) -> object:
    return getattr(getattr(decode({section: {field: value}}, Config()), section), field)


def problem(tree: Any) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        decode(tree, Config())
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize(
    ("section", "field", "value", "expected"),
    [
        ("env", "count", 16, 16),
        ("env", "count", "16", 16),
        ("env", "count", "1e2", 100),
        ("run", "total_steps", "100_000", 100_000),
        ("run", "total_steps", 1e5, 100_000),
        ("ppo", "gamma", 1, 1.0),
        ("ppo", "gamma", "0.5", 0.5),
        ("ppo", "learning_rate", "1e-3", 1e-3),
        ("ppo", "learning_rate", "linear(1e-3, 0)", "linear(1e-3, 0)"),
        ("ppo", "kl_stop", "none", None),
        ("ppo", "kl_stop", "null", None),
        ("ppo", "kl_stop", None, None),
        ("ppo", "kl_stop", "0.02", 0.02),
        ("run", "total_steps", np.int64(128), 128),
        ("run", "total_steps", np.float64(1e5), 100_000),
        ("ppo", "gamma", np.float32(0.5), 0.5),
        ("ppo", "gamma", np.int32(1), 1.0),
        ("ppo", "kl_stop", np.float64(0.25), 0.25),
        ("ppo", "clip_rewards", np.bool_(True), True),
        ("run", "name", "abc", "abc"),
        ("policy", "shared", True, True),
        ("policy", "shared", "True", True),
        ("policy", "shared", "false", False),
        ("policy", "hidden", [32, 16], (32, 16)),
        ("policy", "hidden", "32,16", (32, 16)),
        ("policy", "hidden", "32 16", (32, 16)),
        ("policy", "hidden", "[32, 16]", (32, 16)),
        ("policy", "hidden", 32, (32,)),
        ("policy", "hidden", ["32", "16"], (32, 16)),
        ("policy", "hidden", (np.int64(32), np.uint8(16)), (32, 16)),
        ("run", "loggers", [], ()),
        ("run", "progress", "off", "off"),
        ("env", "options", {"continuous": True, "gravity": -5}, {"continuous": True, "gravity": -5}),
        ("env", "options", {"gravity": np.float32(-5), "count": np.int64(3)}, {"gravity": -5.0, "count": 3}),
        ("env", "options", "{continuous: true, wind: 1e-3}", {"continuous": True, "wind": 1e-3}),
    ],
)
def test_value_is_converted_to_the_type_of_the_field(section: str, field: str, value: object, expected: object) -> None:
    value_of_field = decoded(section, field, value)
    assert value_of_field == expected
    assert type(value_of_field) is type(expected)
    if isinstance(value_of_field, tuple | dict):
        assert json.loads(json.dumps(value_of_field)) == json.loads(json.dumps(expected))


@pytest.mark.parametrize(
    ("tree", "line"),
    [
        ({"env": {"cuont": 8}}, "env.cuont: unknown key; did you mean env.count?"),
        ({"env": {"clip": 0.1}}, "env.clip: unknown key; did you mean ppo.clip?"),
        ({"ppo": {"learningrate": 0.1}}, "ppo.learningrate: unknown key; did you mean ppo.learning_rate?"),
        (
            {"ppo": {"nonsense": 1}},
            "ppo.nonsense: unknown key; the section ppo has no such field, and no field has a similar name; `lockstep train --help` lists all of "
            "them",
        ),
        ({"polcy": {"hidden": [8]}}, "polcy: unknown key; did you mean policy?"),
        ({"clip": 0.1}, "clip: unknown key; did you mean ppo.clip?"),
        ({"xyzzy": 1}, "xyzzy: unknown key; the sections are env, rollout, policy, ppo, curiosity, plan, runtime, run"),
        ({"env": {"count": "abc"}}, "env.count is 'abc': it must be a whole number"),
        ({"env": {"count": 1.5}}, "env.count is 1.5: it must be a whole number"),
        ({"env": {"count": np.float32(1.5)}}, "env.count is 1.5: it must be a whole number"),
        ({"env": {"count": np.bool_(True)}}, "env.count is True: it must be a whole number"),
        ({"env": {"id": np.int64(3)}}, "env.id is 3: it must be text; put it in quotes"),
        ({"ppo": {"gamma": np.float32("nan")}}, "ppo.gamma is np.float32(nan): it must be a finite number"),
        ({"env": {"count": True}}, "env.count is True: it must be a whole number"),
        ({"env": {"count": None}}, "env.count is None: it must be a whole number"),
        ({"env": 3}, "env is 3: it must be a section with fields below it, such as env.id"),
        ({"env": {"id": 3}}, "env.id is 3: it must be text; put it in quotes"),
        ({"env": {"per_rank": "x"}}, "env.per_rank is 'x': it must be a whole number or none"),
        ({"ppo": {"gamma": float("nan")}}, "ppo.gamma is nan: it must be a finite number"),
        ({"ppo": {"gamma": "inf"}}, "ppo.gamma is 'inf': it must be a finite number"),
        ({"ppo": {"gamma": False}}, "ppo.gamma is False: it must be a finite number"),
        ({"ppo": {"clip": [1]}}, "ppo.clip is [1]: it must be a finite number or text"),
        ({"run": {"seed": "1e18"}}, "run.seed is '1e18': a whole number above 2**53 must be written in digits only"),
        (
            {"env": {"per_rank": 1e300}},
            "env.per_rank is 1e+300: a whole number above 2**53 must be written in digits only",
        ),
        ({"policy": {"shared": 1}}, "policy.shared is 1: it must be true or false"),
        ({"policy": {"hidden": [8, "x"]}}, "policy.hidden[1] is 'x': it must be a whole number"),
        (
            {"policy": {"activation": "tahn"}},
            "policy.activation is 'tahn': it must be one of tanh, relu, elu, silu, gelu; did you mean tanh?",
        ),
        (
            {"env": {"options": "abc"}},
            "env.options is 'abc': it must be keys with plain values, such as {continuous: true}",
        ),
        ({"env": {"options": {"a": [1]}}}, "env.options: 'a' is [1]: it must be true, false, a number or text"),
        # found by the sections themselves, and let through as they are
        ({"env": {"count": 0}}, "env.count is 0: it must be between 1 and 1,000,000"),
        ({"ppo": {"gamma": 2}}, "ppo.gamma is 2.0: it must be between 0 and 1"),
    ],
)
def test_invalid_input_is_reported_in_one_line(tree: dict[str, object], line: str) -> None:
    assert problem(tree) == line


def test_message_about_an_invalid_schedule_lists_the_forms() -> None:
    assert "linear(a, b)" in problem({"ppo": {"learning_rate": "linaer(1, 0)"}})


def test_an_empty_section_changes_nothing() -> None:
    assert decode({"env": None, "ppo": {}}, Config()) == Config()


def test_fields_that_are_not_set_keep_their_values() -> None:
    start = decode({"env": {"count": 32}, "ppo": {"epochs": 7}}, Config())
    end = decode({"ppo": {"minibatches": 2}}, start)
    assert (end.env.count, end.ppo.epochs, end.ppo.minibatches) == (32, 7, 2)


def test_every_field_type_can_be_decoded() -> None:
    default = encode(Config())
    assert decode(default, Config()) == Config()
    assert {(section, field) for section, field, _ in known_fields()} == {
        (section.name, field.name)
        for section in dataclasses.fields(Config)
        for field in dataclasses.fields(getattr(Config(), section.name))
    }


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        if arguments[:2] == (float, str):
            return values_of(float) | st.just("linear(0.1, 0)")
        return st.one_of(*map(values_of, arguments))
    if kind is Literal:
        return st.sampled_from(arguments)
    if kind is tuple:
        return st.lists(values_of(arguments[0]), min_size=1, max_size=3)
    if kind is dict:
        return st.dictionaries(st.text(), st.booleans() | st.integers() | st.text() | st.floats(-9, 9), max_size=3)
    plain = {
        bool: st.booleans(),
        int: st.integers(1, 1000),
        float: st.floats(1e-3, 1),
        str: st.sampled_from(["a", "b-1"]),
    }
    return st.none() if hint is types.NoneType else plain[hint]


CHECKED_BY_SECTION = {
    ("ppo", "clip_rewards"),
    *(("policy", name) for name in ("value_hidden", "sde_sample_freq")),
    *(("env", name) for name in ("wrappers", "info_metrics", "on_fault")),
    *(("curiosity", name) for name in ("share", "combine", "kind", "capacity")),
    *(("plan", name) for name in ("kind", "players", "trainers", "lag")),
    *(("runtime", name) for name in ("device", "player_device", "rendezvous")),
}
"""Fields with further checks in their section; the tests of the sections cover them."""


@st.composite
def valid_trees(draw: st.DrawFn) -> dict[str, dict[str, object]]:
    tree: dict[str, dict[str, object]] = {}
    known = st.sampled_from([field for field in known_fields() if field[:2] not in CHECKED_BY_SECTION])
    for section, field, hint in draw(st.lists(known, unique_by=lambda one: one[:2])):
        tree.setdefault(section, {})[field] = draw(values_of(hint))
    return tree


def test_plan_of_named_ranks_is_decoded_from_words_and_lists() -> None:
    words = {"plan": {"kind": "ranks", "players": ["0", "1"], "trainers": "0", "lag": "1"}}
    plan = decode(words, Config()).plan
    assert (plan.players, plan.trainers, plan.lag) == ((0, 1), (0,), 1)
    assert decode(encode(decode(words, Config())), Config()).plan == plan
    assert decode({"plan": {"kind": "2:1"}}, Config()).plan.kind == "2:1"


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []),
        ("[]", []),
        ("A", ["A"]),
        ("A, B C", ["A", "B", "C"]),
        ("[A(x=1), B]", ["A(x=1)", "B"]),
        ("A(x=(1, (2, (3, 4)), 5)), B", ["A(x=(1, (2, (3, 4)), 5))", "B"]),
        (
            "A(x=[1, [2, {'a': (3, 4)}]]) B(y={'b': 1, 'c': 2})",
            ["A(x=[1, [2, {'a': (3, 4)}]])", "B(y={'b': 1, 'c': 2})"],
        ),
        ("(A(x=[1, 2]), B(y=(3,)))", ["A(x=[1, 2])", "B(y=(3,))"]),
        ("""A(x=['a)', "it's, b"]), B""", ["""A(x=['a)', "it's, b"])""", "B"]),
    ],
)
def test_lists_in_one_text_are_split_outside_brackets(text: str, items: list[str]) -> None:
    assert _split_list(text) == items


def test_brackets_that_are_not_closed_are_reported() -> None:
    assert "'A(x=(1, 2), B'" in problem({"env": {"wrappers": "A(x=(1, 2), B"}})
    assert "must be a whole number" in problem({"policy": {"hidden": "(64, 64"}})


def test_clipped_and_normalized_rewards_exclude_each_other() -> None:
    line = "ppo.clip_rewards is true: it excludes ppo.normalize_rewards; set only one of the two"
    assert problem({"ppo": {"clip_rewards": True, "normalize_rewards": True}}) == line


@given(valid_trees())
def test_decode_reverses_encode(tree: dict[str, dict[str, object]]) -> None:
    config = decode(tree, Config())
    assert decode(json.loads(json.dumps(encode(config))), Config()) == config


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.binary(max_size=3)
anything = st.recursive(
    scalars,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), part, max_size=3),
)
sections = st.sampled_from([field.name for field in dataclasses.fields(Config)])
fields = st.sampled_from([field for _, field, _ in known_fields()])
trees = st.dictionaries(
    sections | st.text(max_size=6),
    st.dictionaries(fields | st.text(max_size=9), anything, max_size=3) | anything,
    max_size=3,
)


def check(tree: dict[str, object]) -> None:
    """Check that decoding succeeds or raises a ValueError of one line."""
    line = "no problem"
    try:
        decode(tree, Config())
    except ValueError as error:
        line = str(error)
    assert len(line.splitlines()) == 1


@given(trees)
def test_random_trees_raise_only_one_line_errors(tree: dict[str, object]) -> None:
    check(tree)


@given(sections, fields, st.text() | st.integers() | st.just(10**5000) | st.just("9" * 5000))
def test_random_values_raise_only_one_line_errors(section: str, field: str, value: object) -> None:
    check({section: {field: value}})
