from typing import Any

from lockstep.config import VERSION
from lockstep.report.experiments import RecordedRun, group_by_experiment


def run(name: str, seed: int = 1, **sections: dict[str, Any]) -> RecordedRun:
    tree = {
        "version": VERSION,
        "ppo": {"clip": "0.2", "epochs": 4},
        "run": {"seed": seed, "name": name, "total_steps": 9},
    }
    for section, content in sections.items():
        tree[section] = {**tree.get(section, {}), **content}  # type: ignore[dict-item]
    return RecordedRun(name, tree, [])


def grouped(*runs: RecordedRun) -> list[tuple[str, list[str]]]:
    return [(experiment.label, [run.name for run in experiment.runs]) for experiment in group_by_experiment(runs)]


def test_runs_with_different_seeds_are_one_experiment() -> None:
    assert grouped(run("a"), run("b", 2), run("c", 3)) == [("3 seeds: a, b, c", ["a", "b", "c"])]


def test_runs_from_before_a_field_existed_have_its_default() -> None:
    new = run("new", policy={"distribution": "gaussian"})
    assert len(grouped(run("old", 2), new)) == 1
    assert len(grouped(run("old", 2), run("other", policy={"distribution": "beta"}))) == 2


def test_names_folders_and_display_options_do_not_distinguish_experiments() -> None:
    other = run("b", 2, run={"folder": "elsewhere", "progress": "off", "loggers": [], "keep": 9})
    assert grouped(run("a"), other) == [("2 seeds: a, b", ["a", "b"])]


def test_experiment_with_equal_seeds_is_labeled_with_the_number_of_runs() -> None:
    assert grouped(run("a"), run("b")) == [("2 runs: a, b", ["a", "b"])]


def test_a_single_run_is_labeled_with_its_name() -> None:
    assert grouped(run("a")) == [("a", ["a"])]


def test_labels_name_the_settings_that_differ() -> None:
    narrow = {"clip": "0.1"}
    experiments = grouped(run("a"), run("b", 1, ppo=narrow), run("c", 2), run("d", 2, ppo=narrow), run("e", 5))
    assert experiments == [
        ("ppo.clip 0.2 (3 seeds: a, c, e)", ["a", "c", "e"]),
        ("ppo.clip 0.1 (2 seeds: b, d)", ["b", "d"]),
    ]


def test_labels_name_at_most_three_settings_with_most_values_first() -> None:
    experiments = grouped(
        run("a", ppo={"epochs": 1}),
        run("b", ppo={"epochs": 2, "clip": "0.1", "kl_stop": 0.1}, plan={"lag": 1}),
        run("c", ppo={"epochs": 3, "clip": "0.1"}),
    )
    assert [label for label, _ in experiments] == [
        "a: ppo.epochs 1, ppo.clip 0.2, ppo.kl_stop none, …",
        "b: ppo.epochs 2, ppo.clip 0.1, ppo.kl_stop 0.1, …",
        "c: ppo.epochs 3, ppo.clip 0.1, ppo.kl_stop none, …",
    ]


def test_long_names_are_left_out_of_labels() -> None:
    names = ["a" * 20, "b" * 21]
    assert grouped(run(names[0]), run(names[1], 2)) == [("2 seeds", names)]


def test_settings_that_were_chosen_automatically_do_not_label_experiments() -> None:
    compiled = run("b", ppo={"epochs": 5}, runtime={"compile": "on"})
    assert [label for label, _ in grouped(run("a"), compiled)] == ["a: ppo.epochs 4", "b: ppo.epochs 5"]
    assert grouped(run("a"), run("b", runtime={"compile": "on"}))[1][0] == "b: runtime.compile on"


def test_numbers_in_labels_have_four_digits() -> None:
    assert grouped(run("a", ppo={"clip": 0.123456}), run("b"))[0][0] == "a: ppo.clip 0.1235"
