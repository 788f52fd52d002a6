"""Tables of a sweep, computed from synthetic runs."""

import json
from pathlib import Path

from lockstep.config.compose import load
from lockstep.sweep.member import Member, make_member
from lockstep.sweep.results import FAILED, PRUNED, best, run_row, summary_rows, table


def member(folder: Path, seed: int, clip: float, final: float | None, checkpoint: bool = True) -> Member:
    """Create a run folder with one iteration."""
    tree = {
        "rollout": {"steps": 128},
        "run": {"seed": seed, "total_steps": 1024},
        "ppo": {"clip": clip},
        "runtime": {"device": "cpu"},
    }
    values = {"ppo.clip": clip, "run.seed": seed}
    run = make_member(load(None, None, tree), None, values, folder, f"clip-{clip}-{seed}")
    run.folder.path.mkdir()
    row = {
        "iteration": 1,
        "env_steps": 1024,
        "seconds": 2.5,
        "episodes": 2,
        "return_mean": 1.5,
        "return_mean_20": final,
        "digest": "d",
    }
    earlier = row | {"iteration": 0, "return_mean": 0.5, "return_mean_20": None}
    (run.folder.path / "metrics.jsonl").write_text(f"{json.dumps(earlier)}\n{json.dumps(row)}\n")
    if checkpoint:
        (run.folder.path / "checkpoints" / "00000001").mkdir(parents=True)
    return run


def test_combinations_are_medians_and_quartiles_over_seeds(tmp_path: Path) -> None:
    members = [member(tmp_path, seed, 0.2, 10.0 * seed) for seed in (1, 2, 3)]
    members += [member(tmp_path, 1, 0.3, None), member(tmp_path, 2, 0.3, 5.0, checkpoint=False)]
    runs = [run_row(run, code) for run, code in zip(members, (0, None, 0, 0, 3), strict=True)]
    assert [run["state"] for run in runs] == ["done", "done", "done", "done", "failed"]
    assert run_row(members[4], 75)["state"] == "stopped"
    assert (runs[0]["return"], runs[3]["return"]) == (10.0, 1.0), "before 20 episodes have ended, the mean of all"
    first, second = summary_rows(members, runs)
    assert (first["return_first_quartile"], first["return_median"], first["return_third_quartile"]) == (15, 20, 25)
    assert (second["seeds"], second["done"], second["failed"], second["return_median"]) == (2, 1, 1, 1.0)
    lines = table([first, second])
    assert lines[0].split() == ["clip", "done", "return", "quartiles", "seconds", "steps"]
    assert lines[1].split() == ["0.2", "3", "of", "3", "20", "15", "to", "25", "2.5", "1,024"]
    assert best([first, second]) == "20 with ppo.clip 0.2"


def test_a_pruned_trial_shows_its_return_and_is_not_the_best(tmp_path: Path) -> None:
    pruned = [member(tmp_path, 1, 0.3, 90.0), member(tmp_path, 2, 0.3, None)]
    (pruned[1].folder.path / "metrics.jsonl").unlink()  # this seed had not started
    members = [member(tmp_path, 1, 0.2, 10.0), *pruned]
    for run in pruned:
        run.folder.mark_pruned("return 2 is low")  # also if its run was over before it could be ended
    runs = [run_row(run, 0) for run in members]
    assert [run["state"] for run in runs] == ["done", PRUNED, PRUNED]
    first, second = summary_rows(members, runs)
    assert (second["done"], second["pruned"], second["return_median"]) == (0, 2, 90.0)
    assert table([first, second])[2].split() == ["0.3", "pruned", "90", "90", "to", "90", "2.5", "1,024"]
    assert best([first, second]) == "10 with ppo.clip 0.2"


def test_a_table_stays_narrow(tmp_path: Path) -> None:
    row = summary_rows([run := member(tmp_path, 1, 0.2, 9.0)], [run_row(run, 0)])[0]
    wide = {**{f"ppo.a_field_with_a_name_{letter}": 1e-3 for letter in "ab"}, **row}
    lines = table([wide])
    assert max(map(len, lines)) <= 80
    assert "return" in lines[0]


def test_a_run_that_ended_with_code_0_before_its_last_iteration_has_failed(tmp_path: Path) -> None:
    assert run_row(member(tmp_path, 1, 0.2, None, checkpoint=False), 0)["state"] == FAILED


def test_broken_line_of_metrics_is_left_out(tmp_path: Path) -> None:
    """A crash of the host may leave one, and a single run must not end the whole sweep."""
    run = member(tmp_path, 1, 0.2, 10.0)
    with (run.folder.path / "metrics.jsonl").open("a") as file:
        file.write("\0\0\0\n")
    assert run_row(run, 0)["return"] == 10.0
