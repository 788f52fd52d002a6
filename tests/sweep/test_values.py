"""The parser of swept values and search spaces on the command line."""

import pytest

from lockstep.sweep.member import name_of
from lockstep.sweep.values import Search, combinations, merge_values, read_over, read_search


def test_lists_and_ranges_of_values() -> None:
    swept = read_over(
        ["seed=1..3", "ppo.clip=0.2,linear(0.2, 0)", "policy.hidden=[64,64],[128]", "env.options={a: 1, b: 2}"]
    )
    assert swept == {
        "run.seed": ["1", "2", "3"],
        "ppo.clip": ["0.2", "linear(0.2, 0)"],
        "policy.hidden": ["[64,64]", "[128]"],
        "env.options": ["{a: 1, b: 2}"],
    }
    assert read_over(["run.seed=7"]) == {"run.seed": ["7"]}


def test_all_combinations_of_values() -> None:
    values = list(combinations({"run.seed": ["1", "2"], "ppo.epochs": ["3", "4"]}))
    assert values[1] == {"run.seed": "1", "ppo.epochs": "4"}
    assert len(values) == 4
    assert merge_values({"ppo": {"clip": "0.1"}}, values[1]) == {
        "ppo": {"clip": "0.1", "epochs": "4"},
        "run": {"seed": "1"},
    }


def test_search_spaces() -> None:
    words = [
        "ppo.learning_rate=log(1e-5, 1e-2)",
        "ppo.epochs=int(1,20)",
        "ppo.gamma=float(0.9,1)",
        "policy.core=none,gru",
    ]
    values = read_search(words)
    assert values["ppo.learning_rate"] == Search("log", 1e-5, 1e-2)
    assert values["ppo.epochs"].ends == ("1", "20")
    assert len(values["ppo.gamma"].ends) == 3
    assert values["policy.core"] == Search("choice", choices=("none", "gru"))


@pytest.mark.parametrize(
    ("read", "word", "part"),
    [
        (read_over, "run.sed=1", "did you mean --run.seed"),
        (read_over, "run.seed", "such as run.seed=1..5"),
        (read_over, "run.seed=", "such as run.seed=1..5"),
        (read_over, "run.seed=1,,2", "a value before or after a comma is missing"),
        (read_over, "run.seed=5..1", "must be an increasing range"),
        (read_over, "run.name=a,b", "run.name cannot be swept"),
        (read_search, "run.seed=int(1,5)", "run.seed cannot be searched; use --over, such as --over run.seed=1..5"),
        (read_search, "seed=1,2", "run.seed cannot be searched; use --over"),
        (read_search, "ppo.epochs=int(1.5,3)", "two integers"),
        (read_search, "ppo.clip=log(0,1)", "two numbers above 0"),
        (read_search, "ppo.clip=float(1,0)", "the smaller one first"),
        (read_search, "ppo.clip=float(0,inf)", "two numbers"),
    ],
)
def test_errors_are_reported_in_one_line(read, word: str, part: str) -> None:
    with pytest.raises(ValueError, match=part.replace("(", r"\(")) as caught:
        read([word])
    assert "\n" not in str(caught.value)


def test_folder_names_of_values() -> None:
    assert name_of({"run.seed": 1, "ppo.learning_rate": 0.001}) == "seed-1_learning_rate-0.001"
    assert name_of({"policy.hidden": [64, 64], "ppo.clip": "linear(0.2, 0)"}) == "hidden-64-64_clip-linear-0.2-0"
    assert name_of({"plan.kind": "1:2", "curiosity.kind": "rnd"}) == "plan.kind-1-2_curiosity.kind-rnd"
    long = [name_of({"env.options": {"text": "a" * 200 + end}}) for end in "xy"]
    assert long[0] != long[1]
    assert max(map(len, long)) < 100
