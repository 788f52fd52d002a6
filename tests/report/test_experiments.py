from typing import Any

from lockstep.report.experiments import Recorded, group


def run(name: str, seed: int = 1, **sections: dict[str, Any]) -> Recorded:
    tree = {"version": 1, "ppo": {"clip": "0.2", "epochs": 4}, "run": {"seed": seed, "name": name, "total_steps": 9}}
    for section, content in sections.items():
        tree[section] = {**tree.get(section, {}), **content}  # type: ignore[dict-item]
    return Recorded(name, tree, [])


def shown(*runs: Recorded) -> list[tuple[str, list[str]]]:
    return [(one.label, [run.name for run in one.runs]) for one in group(runs)]


def test_seeds_of_one_experiment_are_together() -> None:
    assert shown(run("a"), run("b", 2), run("c", 3)) == [("3 seeds", ["a", "b", "c"])]


def test_names_folders_and_what_is_shown_make_no_experiment() -> None:
    other = run("b", 2, run={"folder": "elsewhere", "progress": "off", "loggers": [], "keep": 9})
    assert shown(run("a"), other) == [("2 seeds", ["a", "b"])]


def test_a_seed_twice_is_not_two_seeds() -> None:
    assert shown(run("a"), run("b")) == [("2 runs", ["a", "b"])]


def test_one_run_has_its_name() -> None:
    assert shown(run("a")) == [("a", ["a"])]


def test_the_label_says_what_differs() -> None:
    narrow = {"clip": "0.1"}
    found = shown(run("a"), run("b", 1, ppo=narrow), run("c", 2), run("d", 2, ppo=narrow), run("e", 5))
    assert found == [("ppo.clip 0.2 (3 seeds)", ["a", "c", "e"]), ("ppo.clip 0.1 (2 seeds)", ["b", "d"])]


def test_what_tells_most_apart_comes_first_and_four_are_too_many() -> None:
    found = shown(
        run("a", ppo={"epochs": 1}),
        run("b", ppo={"epochs": 2, "clip": "0.1", "kl_stop": 0.1}, plan={"lag": 1}),
        run("c", ppo={"epochs": 3, "clip": "0.1"}),
    )
    assert [label for label, _ in found] == [
        "ppo.epochs 1, ppo.clip 0.2, ppo.kl_stop none, …",
        "ppo.epochs 2, ppo.clip 0.1, ppo.kl_stop 0.1, …",
        "ppo.epochs 3, ppo.clip 0.1, ppo.kl_stop none, …",
    ]
