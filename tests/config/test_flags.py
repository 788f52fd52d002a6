import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep import presets
from lockstep.config import Config
from lockstep.config.compose import load
from lockstep.config.decode import decode, encode, known_fields
from lockstep.config.flags import SHORT, as_flags, parse_flags
from lockstep.config.help import help_text


def config(line: str) -> Config:
    tree, rest = parse_flags(shlex.split(line))
    assert rest == []
    return decode(tree, Config())


def problem(line: str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        config(line)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize(
    "line",
    ["--env.count 16", "--env.count=16", "--env.count 16 --seed 1"],
)
def test_space_and_equals_sign_are_equivalent(line: str) -> None:
    assert config(line).env.count == 16


def test_dashes_and_underscores_are_equivalent() -> None:
    assert config("--ppo.learning-rate 1e-3") == config("--ppo.learning_rate 0.001")


@pytest.mark.parametrize("line", ["--policy.shared", "--policy.shared true", "--policy.shared=True"])
def test_boolean_flag_sets_true(line: str) -> None:
    assert config(line).policy.shared is True


@pytest.mark.parametrize(
    "line",
    ["--no-policy.orthogonal", "--policy.no-orthogonal", "--policy.orthogonal false", "--policy.orthogonal=false"],
)
def test_negated_flag_sets_false(line: str) -> None:
    assert config(line).policy.orthogonal is False


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("", None),
        ("--ppo.normalize-rewards", True),
        ("--ppo.normalize-rewards true", True),
        ("--ppo.no-normalize-rewards", False),
        ("--ppo.normalize-rewards none", None),
        ("--ppo.normalize-rewards=false", False),
    ],
)
def test_boolean_flag_that_may_be_none(line: str, value: bool | None) -> None:
    assert config(line).ppo.normalize_rewards is value


def test_boolean_flag_does_not_consume_the_next_word() -> None:
    assert parse_flags(["--policy.shared", "cartpole"])[1] == ["cartpole"]


@pytest.mark.parametrize("line", ["--policy.hidden 32 16 --seed 1", "--policy.hidden=32,16", "--policy.hidden '32 16'"])
def test_list_flag_takes_several_values(line: str) -> None:
    assert config(line).policy.hidden == (32, 16)


def test_list_flag_without_values_is_an_empty_list() -> None:
    assert config("--run.loggers --seed 2").run.loggers == ()


def test_negative_numbers_are_values() -> None:
    assert config("--policy.log-std -1.5").policy.log_std == -1.5
    assert config("--policy.log-std -.5").policy.log_std == -0.5
    assert problem("--policy.hidden -3") == "policy.hidden is [-3]: each width must be from 1 to 16,384"


def test_short_flags_stand_for_fields() -> None:
    parsed = config("--plan coupled --env Reacher-v5 --seed 7 --name a --total-steps 1e5 --out /x")
    assert (parsed.plan.kind, parsed.env.id, parsed.run.seed) == ("coupled", "Reacher-v5", 7)
    assert (parsed.run.name, parsed.run.total_steps, parsed.run.folder) == ("a", 100_000, "/x")
    assert {f"{section}.{field}" for section, field, _ in known_fields()} >= set(SHORT.values())


def test_remaining_words_keep_their_order() -> None:
    tree, rest = parse_flags(["cartpole", "--ranks", "2", "--seed", "3", "--config=a.yaml", "-h", "--", "--seed"])
    assert tree == {"run": {"seed": "3"}}
    assert rest == ["cartpole", "--ranks", "2", "--config=a.yaml", "-h", "--seed"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--env.cuont 3", "--env.cuont: unknown flag; did you mean --env.count?"),
        ("--env.clip 3", "--env.clip: unknown flag; did you mean --ppo.clip?"),
        ("--sede 3", "--sede: unknown flag; did you mean --seed?"),
        ("--rank 3", "--rank: unknown flag; did you mean --ranks?"),
        ("--learning-rate 3", "--learning-rate: unknown flag; did you mean --ppo.learning-rate?"),
        ("--xyzzy", "--xyzzy: unknown flag; --help lists all flags"),
        ("-s 3", "-s: unknown flag; --help lists all flags"),
        ("--seed 3 --run.seed 4", "--run.seed: run.seed is given twice"),
        ("--policy.shared --no-policy.shared", "--no-policy.shared: policy.shared is given twice"),
        ("--env.count", "--env.count needs a value"),
        ("--env.count --seed 3", "--env.count needs a value"),
        ("--no-env.count", "--no-env.count: only a boolean flag can be negated; set --env.count to a value"),
        ("--no-policy.shared=true", "--no-policy.shared takes no value"),
        ("--env.count abc", "env.count is 'abc': it must be a whole number"),
        ("--seed=", "run.seed is '': it must be a whole number"),
    ],
)
def test_invalid_flags_are_reported_in_one_line(line: str, expected: str) -> None:
    assert problem(line) == expected


words = st.text(max_size=8) | st.sampled_from(
    ["--", "-", "--env.count", "--policy.shared", "--no-policy.shared", "--policy.hidden", "--seed", "3", "true", "-1"]
)


@given(st.lists(words | st.text(max_size=8).map(lambda text: f"--{text}"), max_size=5))
def test_random_words_raise_only_one_line_errors(argv: list[str]) -> None:
    line = "no problem"
    try:
        tree, _ = parse_flags(argv)
        load(None, None, tree)
    except ValueError as error:
        line = str(error)
    assert len(line.splitlines()) == 1


def test_help_shows_every_field_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = help_text("train", decode({"env": {"count": 77}}, Config()), "usage: lockstep train [PRESET]")
    assert text.startswith("usage: lockstep train [PRESET]\n")
    assert max(map(len, text.splitlines())) <= 80
    for section, field, _ in known_fields():
        assert f"--{section}.{field.replace('_', '-')}" in text
    assert "(default: 77)" in text
    for short in SHORT:
        assert f"--{short.replace('_', '-')} = --" in text


@pytest.mark.parametrize("name", presets.names())
def test_parse_flags_reverses_as_flags(name: str) -> None:
    config = load(presets.read(name), None, {})
    words = as_flags(encode(config))
    assert decode(parse_flags(words)[0], Config()) == config


def test_as_flags_joins_values_that_start_with_a_dash() -> None:
    tree = {
        "env": {"options": {"name": "it's", "gravity": -1e-5, "on": True}, "module": "-m"},
        "run": {"loggers": [], "solved_return": -200.0, "name": None},
    }
    words = as_flags(tree)
    assert words[2:5] == ["--env.module=-m", "--run.loggers", "--run.solved-return"]
    decoded = encode(decode(parse_flags(words)[0], Config()))
    assert {section: {field: decoded[section][field] for field in fields} for section, fields in tree.items()} == tree
