from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.config.compose import load, merged_tree
from lockstep.config.gin import parse_gin

FIELD = "a field is section.field = VALUE, such as run.seed = 3"
PLAIN = "has no plain value, such as 0.2, True, None, 'text' or [64, 64]"
# What the program for pendulums that takes gin files is given.
DENSE = """
train.num_iter = 3_000_000      # Number of iterations
train.num_trajs = 20
train.num_actor_epochs = 20
train.num_critic_epochs = 40
train.nhid = 64
train.bs = 20
train.surrogate_objective = 'clip'\t\t\t  # which surrogate

Critic.lr = 1E-3


"""


def test_bindings_set_fields() -> None:
    text = """
    # anything
    ppo.clip = 0.2  # a comment
    ppo.learning_rate = 'linear(3e-4, 0)'
    ppo.kl_stop = None
    policy.hidden = [
        64,  # the first
        32,
    ]
    policy.shared = True
    env.options = {'continuous': True, 'gravity': -9.8}
    run.name = 'a' "b"
    run.total_steps = 3_000_000
    """.replace("\n    ", "\n")
    assert parse_gin(text) == {
        "ppo": {"clip": 0.2, "learning_rate": "linear(3e-4, 0)", "kl_stop": None},
        "policy": {"hidden": [64, 32], "shared": True},
        "env": {"options": {"continuous": True, "gravity": -9.8}},
        "run": {"name": "ab", "total_steps": 3_000_000},
    }


def test_macros_are_plain_values() -> None:
    text = "width = 64\nhidden = (%width, %width)\npolicy.hidden = %hidden\ncuriosity.hidden = [%width]\n"
    assert parse_gin(text) == {"policy": {"hidden": (64, 64)}, "curiosity": {"hidden": [64]}}


def test_empty_file_is_an_empty_tree() -> None:
    assert parse_gin("\n# nothing yet\n") == {}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ppo.clip = 1\nimport os", "line 2: 'import os' would run code, but a config file is read as data; remove it"),
        ("from os import path", "line 1: 'from os import path' would run code, but a config file is read as data; remove it"),
        ("include 'base.gin'", "line 1: \"include 'base.gin'\": includes are not supported; copy the content of that file"),
        ("ppo.clip = @clip()", "line 1: 'ppo.clip = @clip()' has a reference, which would run code; write its value"),
        ("ppo.clip = [1, @a/b.c]", "line 1: 'ppo.clip = [1, @a/b.c]' has a reference, which would run code; write its value"),
        ("ppo.clip = %clip", "line 1: 'ppo.clip = %clip': the macro is not defined in a line above"),
        ("ppo.clip = %clip\nclip = 1", "line 1: 'ppo.clip = %clip': the macro is not defined in a line above"),
        ("seed = 3", f"line 1: seed is used nowhere: {FIELD}"),
        ("play/ppo.clip = 1", "line 1: 'play/ppo.clip = 1' has a scope: a config has one value per field"),
        ("a.b.clip = 1", f"line 1: 'a.b.clip = 1': {FIELD}"),
        ("ppo.clip", f"line 1: 'ppo.clip': {FIELD}"),
        ("ppo:\n  clip = 1", f"line 1: 'ppo:': {FIELD}"),
        ("ppo.clip =", f"line 1: 'ppo.clip =' {PLAIN}"),
        ("run.name = a", f"line 1: 'run.name = a' {PLAIN}"),
        ("ppo.clip = exit()", f"line 1: 'ppo.clip = exit()' {PLAIN}"),
        ("ppo.clip = 1\n\nppo.clip = 2", "line 3: ppo.clip is given twice"),
        ("a = 1\nppo.clip = %a\na = 2", "line 3: a is given twice"),
        ("ppo.clip = [1,\n2", "line 2: a bracket or a quote is not closed, or the indentation is broken"),
        ("ppo.clip = 1\n  ppo.gamma = 1\n run.seed = 1", "line 3: a bracket or a quote is not closed, or the indentation is broken"),
    ],
)  # fmt: skip
def test_statements_that_are_not_data_are_refused_in_one_line(text: str, line: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_gin(text)
    assert str(caught.value) == line


def doubled(value: str, times: int, join: str) -> str:
    """Return a file in which every macro contains the previous one twice."""
    lines = [f"m0 = {value}", *(f"m{n} = {join.format(n - 1)}" for n in range(1, times))]
    return "\n".join([*lines, f"policy.hidden = %m{times - 1}"])


@pytest.mark.parametrize(
    "text",
    [
        doubled("[64, 64, 64]", 25, "[%m{0}, %m{0}]"),
        doubled("'abcdefgh'", 25, "%m{0} %m{0}"),
        doubled("'a'", 40, "{{'k': %m{0}, 'j': %m{0}}}"),
        f"m = '{'a' * 999}'\n" + "".join(f"a{n}.b = %m\n" for n in range(200)),
    ],
)
def test_macros_with_too_large_expansions_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(
        ValueError, match=r": the macros of this file expand to more than 100,000 characters; use fewer"
    ) as caught:
        parse_gin(text)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith("line ")


def test_macros_may_contain_macros_within_the_limit() -> None:
    tree = parse_gin(doubled("'a'", 12, "%m{0} %m{0}"))
    assert tree == {"policy": {"hidden": "a" * 2**11}}


@given(st.text() | st.text(alphabet="ab.= %@/:[](){}-'\"#\\\n1,"))
def test_random_texts_raise_only_one_line_errors(text: str) -> None:
    line = "no problem"
    try:
        parse_gin(text)
    except ValueError as error:
        line = str(error)
    assert len(line.splitlines()) == 1


def test_names_of_the_pendulum_program_are_translated() -> None:
    """An iteration has 20 trajectories of 100 steps and a reset row each, and an epoch is one gradient step on all of them."""
    assert parse_gin(DENSE) == {
        "env": {"id": "pendulum-dense", "count": 20},
        "rollout": {"steps": 101},
        "policy": {"hidden": [64, 64]},
        "ppo": {
            "minibatches": 1,
            "policy_epochs": 20,
            "value_epochs": 40,
            "surrogate": "clip",
            "value_learning_rate": 1e-3,
        },
        "run": {"total_steps": 3_000_000 * 20 * 101},
    }
    others = "Pendulum.sparse_reward = True\nActor.lr = 1e-4\nActor.episolon = 0.1\ntrain.lambda_const = 0.9\ntrain.gamma = 0.95\n"
    assert parse_gin(others) == {
        "env": {"id": "pendulum-sparse"},
        "ppo": {"minibatches": 1, "learning_rate": 1e-4, "clip": 0.1, "gae_lambda": 0.9, "gamma": 0.95},
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("train.hardcode_actor = True", "line 1: train.hardcode_actor has no counterpart: the acting policy is always the trained one"),
        ("\ntrain.depth = 2", "line 2: train.depth has no counterpart"),
        ("Critic.nhid = 64", "line 1: Critic.nhid has no counterpart: train.nhid overrules it"),
        ("train.num_iter = 'a'", "line 1: train.num_iter is 'a': it must be a whole number"),
        ("train.num_iter = 9\ntrain.num_trajs = 'a'", "line 2: train.num_trajs is 'a': it must be a whole number"),
        ("ppo.clip = 1\nActor.episolon = 1", "line 2: ppo.clip is given twice"),
    ],
)  # fmt: skip
def test_binding_without_counterpart_is_reported(text: str, line: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_gin(text)
    assert str(caught.value) == line


def test_number_of_iterations_is_converted_with_the_merged_config(tmp_path: Path) -> None:
    path = tmp_path / "a.gin"
    path.write_text("train.num_iter = 50\n")
    preset = {"env": {"count": 8}, "rollout": {"steps": 400}}
    assert load(preset, path, {}).run.total_steps == 50 * 8 * 400
    assert load(None, path, {"env": {"count": "3"}}).run.total_steps == 50 * 3 * 256
    assert load(preset, path, {"run": {"total_steps": "7000"}}).run.total_steps == 7000
    assert merged_tree(preset, path, {})["run"] == {"total_steps": 50 * 8 * 400}
    with pytest.raises(
        ValueError, match=r"^env\.per_rank is 2: train\.num_iter needs env\.count, .* give run\.total_steps instead$"
    ):
        load(preset, path, {"env": {"per_rank": 2}})


def test_gin_files_are_checked_like_other_files(tmp_path: Path) -> None:
    path = tmp_path / "a.gin"
    path.write_text("ppo.clip = 0.1\nrun.seed = 3\n")
    config = load({"ppo": {"clip": 0.3, "epochs": 7}}, path, {"run": {"seed": "4"}})
    assert (config.ppo.clip, config.ppo.epochs, config.run.seed) == (0.1, 7, 4)
    for text, line in (
        ("ppo.clipp = 1", f"{path}: ppo.clipp: unknown key; did you mean ppo.clip?"),
        ("run.seed = 'a'", f"{path}: run.seed is 'a': it must be a whole number"),
        ("env.module = 'os'", "env.module is 'os': a config file can't import modules"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=r".") as caught:
            load(None, path, {})
        assert str(caught.value).startswith(line)
