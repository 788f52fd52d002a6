"""What differs between the runs of a sweep, from words of a command line."""

import pytest

from lockstep.sweep.member import name_of
from lockstep.sweep.values import Search, combinations, read_over, read_search, taken_from


def test_values_are_listed_and_ranged() -> None:
    over = read_over(
        ["seed=1..3", "ppo.clip=0.2,linear(0.2, 0)", "policy.hidden=[64,64],[128]", "env.options={a: 1, b: 2}"]
    )
    assert over == {
        "run.seed": ["1", "2", "3"],
        "ppo.clip": ["0.2", "linear(0.2, 0)"],
        "policy.hidden": ["[64,64]", "[128]"],
        "env.options": ["{a: 1, b: 2}"],
    }
    assert read_over(["run.seed=7"]) == {"run.seed": ["7"]}


def test_every_value_meets_every_other() -> None:
    found = list(combinations({"run.seed": ["1", "2"], "ppo.epochs": ["3", "4"]}))
    assert found[1] == {"run.seed": "1", "ppo.epochs": "4"}
    assert len(found) == 4
    assert taken_from({"ppo": {"clip": "0.1"}}, found[1]) == {
        "ppo": {"clip": "0.1", "epochs": "4"},
        "run": {"seed": "1"},
    }


def test_spaces_are_read() -> None:
    words = [
        "ppo.learning_rate=log(1e-5, 1e-2)",
        "ppo.epochs=int(1,20)",
        "ppo.gamma=float(0.9,1)",
        "policy.core=none,gru",
    ]
    found = read_search(words)
    assert found["ppo.learning_rate"] == Search("log", 1e-5, 1e-2)
    assert found["ppo.epochs"].ends == ("1", "20")
    assert len(found["ppo.gamma"].ends) == 3
    assert found["policy.core"] == Search("choice", choices=("none", "gru"))


@pytest.mark.parametrize(
    ("read", "word", "part"),
    [
        (read_over, "run.sed=1", "did you mean --run.seed"),
        (read_over, "run.seed", "such as run.seed=1..5"),
        (read_over, "run.seed=", "such as run.seed=1..5"),
        (read_over, "run.seed=1,,2", "missing beside a comma"),
        (read_over, "run.seed=5..1", "must go up"),
        (read_over, "run.name=a,b", "the sweep's own matter"),
        (read_search, "ppo.epochs=int(1.5,3)", "two whole numbers"),
        (read_search, "ppo.clip=log(0,1)", "two numbers above 0"),
        (read_search, "ppo.clip=float(1,0)", "the smaller first"),
        (read_search, "ppo.clip=float(0,inf)", "two numbers"),
    ],
)
def test_what_can_not_be_is_one_line(read, word: str, part: str) -> None:
    with pytest.raises(ValueError, match=part.replace("(", r"\(")) as caught:
        read([word])
    assert "\n" not in str(caught.value)


def test_names_are_those_of_folders() -> None:
    assert name_of({"run.seed": 1, "ppo.learning_rate": 0.001}) == "seed-1_learning_rate-0.001"
    assert name_of({"policy.hidden": [64, 64], "ppo.clip": "linear(0.2, 0)"}) == "hidden-64-64_clip-linear-0.2-0"
    assert name_of({"plan.kind": "1:2", "curiosity.kind": "rnd"}) == "plan.kind-1-2_curiosity.kind-rnd"
    long = [name_of({"env.options": {"text": "a" * 200 + end}}) for end in "xy"]
    assert long[0] != long[1]
    assert max(map(len, long)) < 100
