"""Statistics, tables and figures of benchmarks/learning, on results that are written here."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep import presets

pytestmark = pytest.mark.extra("matplotlib")


@pytest.fixture
def learning(root: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The modules of the benchmark."""
    monkeypatch.syspath_prepend(root / "benchmarks" / "learning")
    import aggregate
    import records
    import table_results
    import tables
    import tasks

    return SimpleNamespace(
        aggregate=aggregate, records=records, table_results=table_results, tables=tables, tasks=tasks
    )


def write_results(learning: SimpleNamespace, folder: Path, table: str, task: object, means: list[float]) -> None:
    """Write a result for each mean return."""
    for seed, mean in enumerate(means):
        points = [(steps, 2, mean * steps / task.steps) for steps in range(1000, task.steps + 1, 1000)]
        record = {
            "seed": seed,
            "processor": "a processor",
            "seconds": task.steps / 1000,
            "steps_per_second": 1000,
            "thresholds": learning.records.thresholds(
                [(s, s / 1000, m) for s, _, m in points], [task.wanted, task.bar]
            ),
            "curve": learning.records.thin_curve(points),
            "evaluation": {kind: learning.records.summary([mean, mean]) for kind in ("deterministic", "sampled")},
        }
        learning.records.write_record(learning.records.result_path(folder, table, task.name, seed), record)


def test_curves_are_thinned_to_means_of_episodes(learning: SimpleNamespace) -> None:
    points = [(10, 1, 1.0), (20, 3, 5.0), (30, 0, 0.0), (40, 1, 7.0)]
    assert learning.records.thin_curve(points, 2) == {"steps": [10, 40], "return_mean": [1.0, 5.5]}
    many = [(step, 1, float(step)) for step in range(1, 10_001)]
    assert len(learning.records.thin_curve(many)["steps"]) == learning.records.POINTS
    assert learning.records.thin_curve([]) == {"steps": [], "return_mean": []}


def test_thresholds_are_the_first_steps_and_seconds(learning: SimpleNamespace) -> None:
    points = [(10, 1.0, None), (20, 2.0, 3.0), (30, 3.04, 5.0), (40, 4.0, 4.0)]
    assert learning.records.thresholds(points, [9, 4, 4]) == [
        {"return": 4, "steps": 30, "seconds": 3.0},
        {"return": 9, "steps": None, "seconds": None},
    ]


def test_estimates_are_interquartile_means_with_intervals(learning: SimpleNamespace) -> None:
    value, low, high = learning.aggregate.estimate([[0, 1, 2, 3, 4, 5, 6, 100]])
    assert value == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert 0 <= low < value < high <= 100
    assert learning.aggregate.estimate([[7.0, 7.0, 7.0]]) == (7, 7, 7)
    value, low, high = learning.aggregate.estimate([[7.0]])
    assert (value, math.isnan(low), math.isnan(high)) == (7, True, True)


def test_tasks_are_resampled_separately(learning: SimpleNamespace) -> None:
    assert learning.aggregate.estimate([[0.0] * 5, [1.0] * 5]) == (0.5, 0.5, 0.5)
    assert learning.aggregate.balanced([[1, 2, 3], [4, 5]]) == [[1, 2], [4, 5]]


def test_profiles_are_shares_of_runs_above_a_score(learning: SimpleNamespace) -> None:
    band = learning.aggregate.profile([[0.1, 0.3], [0.5, 0.9]], np.array([0.0, 0.2, 0.5, 1.0]))
    assert band.value.tolist() == [1, 0.75, 0.25, 0]
    assert (band.low <= band.value).all()
    assert (band.value <= band.high).all()


def test_normalized_scores_lie_between_random_and_bar(learning: SimpleNamespace) -> None:
    assert learning.aggregate.normalized(-1200, -1200, -200) == 0
    assert learning.aggregate.normalized(-200, -1200, -200) == 1


def test_every_table_is_readable_and_has_random_scores_and_markers(learning: SimpleNamespace, root: Path) -> None:
    scores = json.loads(learning.table_results.RANDOM_SCORES.read_text())
    page = (root / "docs" / "learning.md").read_text()
    assert len(learning.tasks.table_names()) == 9
    for name in learning.tasks.table_names():
        assert f"<!-- begin {name} -->" in page
        for task in learning.tasks.read_table(name).tasks.values():
            assert task.bar > scores[task.environment]["mean"]
            assert task.seeds >= 5
    with pytest.raises(ValueError, match="there is no such table; there are ablation, atari"):
        learning.tasks.read_table("atrai")


def test_seeds_that_other_unfinished_tasks_do_not_have_are_not_counted(learning: SimpleNamespace) -> None:
    table = learning.tasks.read_table("presets-mujoco")
    found = {name: list("abcd") for name in table.tasks} | {"Reacher-v5": list("abc"), "Pusher-v5": []}
    found["Ant-v5"] = list("abcde")  # all planned seeds
    counted = learning.table_results.counted(table, found)
    assert {name: "".join(records) for name, records in counted.items()} == {
        name: "abcde" if name == "Ant-v5" else "abc" for name in table.tasks if name != "Pusher-v5"
    }


def test_a_page_gets_its_tables_and_figures(learning: SimpleNamespace, tmp_path: Path) -> None:
    page, readme, results = tmp_path / "learning.md", tmp_path / "README.md", tmp_path / "results"
    arguments = ["--results", str(results), "--page", str(page), "--readme", str(readme)]
    names = [*learning.tasks.table_names(), "comparison"]
    page.write_text(
        "before\n" + "".join(f"<!-- begin {name} -->\nstale text\n<!-- end {name} -->\n" for name in names) + "after\n"
    )
    table = learning.tasks.read_table("default-mujoco")
    for task in table.tasks.values():
        write_results(learning, results, "default-mujoco", task, [task.bar * share for share in (0.8, 0.9, 1, 1.1)])
    write_results(learning, results, "default-mujoco-sb3", table.tasks["Ant-v5"], [500, 600])
    readme.write_text("before <!-- begin results --> old <!-- end results --> after")
    write_results(learning, results, "presets-mujoco", table.tasks["Ant-v5"], [3000])
    learning.tables.main(arguments)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale text" not in text
    assert text.count("No results yet.") == len(names) - 3
    rows = [line for line in text.splitlines() if line.startswith("| Ant-v5 | 1,000,000 | 4 |")]
    assert rows[0].startswith("| Ant-v5 | 1,000,000 | 4 | 3,258† | 2,932 | **3,095 [")
    assert "| 550 [500, 600] |" in rows[0]
    assert "| HalfCheetah-v5 | 5,206 | 3 of 4 | 950,000 | – | – |" in text
    assert "| 0 of 2 | – |" in text
    # the middle seeds have 0.9 and 1 of the bar
    assert "Tasks: Ant-v5." in text
    assert "| lockstep | the defaults, for all tasks | 4 | 0.95 [" in text
    assert "| Ant-v5 | 0.95 | 0.18 | 950,500 | – |" in text
    assert "Interquartile mean of the normalized scores over all tasks: lockstep 0.9" in text
    for name in ("default-mujoco-curves", "default-mujoco-profiles", "comparison-profiles"):
        assert (tmp_path / "learning" / f"{name}.svg").stat().st_size < 300_000
    summary = readme.read_text()
    assert summary.startswith("before <!-- begin results -->\n\n| environment |")
    assert summary.endswith("<!-- end results --> after")
    (row,) = [line for line in summary.splitlines() if line.startswith("| Ant-v5 ")]
    assert row.startswith("| Ant-v5 | 1,000,000 | 3,258 | 3,095 [")
    assert row.endswith("| 4 | 3,000 | 1 |")
    first = (tmp_path / "learning" / "default-mujoco-curves.svg").read_bytes()
    learning.tables.main(arguments)
    assert (page.read_text(), (tmp_path / "learning" / "default-mujoco-curves.svg").read_bytes()) == (text, first)


def test_runs_that_are_not_finished_are_shown_until_a_result_is_stored(
    learning: SimpleNamespace, tmp_path: Path
) -> None:
    import run

    table, results = learning.tasks.read_table("atari"), tmp_path / "results"
    task, folder = table.tasks["Pong"], tmp_path / "runs" / "atari-Pong-0"
    store = (table, task, 0, 1.0, None, False, folder.parent, results)
    assert run.store_unfinished(*store) == "Pong seed 0: not begun"
    folder.mkdir(parents=True)
    rows = [
        {"env_steps": steps, "seconds": steps / 1000, "episodes": 1, "return_mean": steps / 1e5, "digest": "d"}
        for steps in range(100_000, 2_000_001, 100_000)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps({**row, "return_mean_20": None}) + "\n" for row in rows))
    (folder / "config.json").write_text('{"env": {"engine": "ale"}}')
    (folder / "environment.json").write_text('{"packages": {}, "git": null}')
    run.beside(folder, ".json").write_text("{}")
    assert run.store_unfinished(*store) == "Pong seed 0: 2,000,000 of 10,000,000 steps"
    text = learning.tables.section(table, results, tmp_path / "learning.md")
    assert "- Pong, seed 0: 2,000,000 of 10,000,000 steps." in text
    assert "which ends at 2,000,000 steps, is 20." in text
    assert "Pong: the curve “Stable-Baselines3 (zoo), published” is from https://" in text
    drawn = (tmp_path / "learning" / "atari-curves.svg").read_text()
    assert "Stable-Baselines3 (zoo), published" in drawn
    write_results(learning, results, "atari", task, [20.0])
    assert "not finished" not in learning.tables.section(table, results, tmp_path / "learning.md")


def test_runs_without_times_count_for_returns_and_steps_only(learning: SimpleNamespace, tmp_path: Path) -> None:
    task = learning.tasks.read_table("default-mujoco").tasks["Ant-v5"]
    write_results(learning, tmp_path, "default-mujoco", task, [task.bar, task.bar])
    path = learning.records.result_path(tmp_path, "default-mujoco", "Ant-v5", 0)

    def runs() -> object:
        results = learning.table_results.read_results(learning.tasks.read_table("default-mujoco"), tmp_path)
        return results.lockstep["Ant-v5"]

    before = runs()
    for seed in (0, 1):
        path = path.with_name(f"{seed}.json")
        learning.records.write_record(path, learning.records.untimed(json.loads(path.read_text())))
        assert json.loads(path.read_text())["wall_seconds"] is None
        after = runs()
        assert (after.scores(), after.steps_to_threshold) == (before.scores(), before.steps_to_threshold)


def test_a_result_has_the_config_of_its_own_run(root: Path) -> None:
    for path in (root / "benchmarks" / "learning" / "results").rglob("*.json"):
        record = json.loads(path.read_text())
        if record["program"] == "lockstep":
            assert record["config"]["env.id"] == record["environment"].split()[0], path


def test_runs_of_a_variant_with_a_dot_in_its_name_have_files_of_their_own(learning: SimpleNamespace) -> None:
    import run

    names = {
        run.beside(Path(f"ablation-discount-0.995-{task}-0"), ".json").name for task in ("Hopper-v5", "Reacher-v5")
    }
    assert names == {"ablation-discount-0.995-Hopper-v5-0.json", "ablation-discount-0.995-Reacher-v5-0.json"}


def test_settings_of_tasks_are_valid_configs(learning: SimpleNamespace) -> None:
    import run

    for name in learning.tasks.table_names():
        for task in learning.tasks.read_table(name).tasks.values():
            if task.preset is None or task.preset in presets.names():
                config = run.experiment(task, 0.5)
                assert config["env.id"] == task.env
                assert config["run.total_steps"] == task.steps // 2
                assert run.changed(task, 0.5, {**config, "ppo.gamma": 0.5, "ppo.of_another_version": 1}) == [
                    "ppo.gamma"
                ]


def command(root: Path, *words: object) -> list[str]:
    flags = ("--only", "CartPole-v1", "--seeds", "0", "--scale", "0.05", "--results", "results", "--out", "runs")
    return [sys.executable, str(root / "benchmarks/learning/run.py"), "default-classic", *flags, *map(str, words)]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_killed_benchmark_continues(root: Path, tmp_path: Path, environ: dict[str, str], run_cli) -> None:
    config = {"cwd": tmp_path, "env": environ, "stdout": subprocess.PIPE, "text": True}
    killed = subprocess.Popen(command(root), **config)
    metrics = tmp_path / "runs" / "default-classic-CartPole-v1-0" / "metrics.jsonl"
    while killed.poll() is None and not metrics.exists():
        time.sleep(0.05)
    killed.kill()
    killed.communicate()  # until the training process has closed the pipe
    assert not (tmp_path / "results").exists()
    finished = subprocess.run(command(root), check=True, **config)
    assert finished.stdout.startswith("default-classic: 1 runs to do\nCartPole-v1 seed 0: ")
    record = json.loads((tmp_path / "results/default-classic/CartPole-v1/0.json").read_text())
    assert record["wall_seconds"] is None
    assert record["evaluation"]["sampled"]["episodes"] == 100
    run_cli(
        "train",
        "--env",
        "CartPole-v1",
        "--total-steps",
        5_000,
        "--seed",
        0,
        "--name",
        "whole",
        "--run.progress",
        "off",
    )
    rows = (tmp_path / "runs" / "whole" / "metrics.jsonl").read_text().splitlines()
    assert record["digest"] == json.loads(rows[-1])["digest"]
    assert subprocess.run(command(root), check=True, **config).stdout == "default-classic: 0 runs to do\n"


def test_an_unknown_table_is_refused(root: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    words = [sys.executable, str(root / "benchmarks/learning/run.py"), "missing", "--results", "results"]
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "missing: there is no such table; there are ablation, atari, default-classic" in done.stderr


def test_variants_are_compared_with_their_table(learning: SimpleNamespace, tmp_path: Path) -> None:
    table = learning.tasks.read_table("ablation")
    variant = table.variants["constant-rate"]
    assert variant.tasks["Hopper-v5"].flags == {"ppo": {"learning_rate": "3e-4"}}  # YAML 1.1
    assert table.tasks["Hopper-v5"].flags == {}
    random = json.loads(learning.table_results.RANDOM_SCORES.read_text())
    for chosen, score in ((table, 1.0), (variant, 0.5)):
        for task in chosen.tasks.values():
            low = random[task.environment]["mean"]
            write_results(learning, tmp_path, chosen.name, task, [low + score * (task.bar - low)] * 3)
    text = learning.tables.section(table, tmp_path, tmp_path / "learning.md")
    (row,) = (line for line in text.splitlines() if "`constant-rate`" in line)
    assert "-0.50 [-0.50, -0.50]" in row
    assert "`std-1`" not in text


def test_unknown_variants_are_refused(learning: SimpleNamespace) -> None:
    table = learning.tasks.read_table("ablation")
    assert [chosen.name for chosen in learning.tasks.with_variants(table, ["std-1"])] == ["ablation-std-1"]
    with pytest.raises(ValueError, match=r"^std-2: there is no such variant of ablation; there are advantages-once, "):
        learning.tasks.with_variants(table, ["std-2"])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_stored_result_is_that_of_this_version(root: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    flags = ["default-classic", "--only", "CartPole-v1", "--seeds", "0", "--repeated", "repeated"]
    words = [sys.executable, str(root / "benchmarks/learning/verify.py"), *flags]
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "CartPole-v1 seed 0: equal")


def test_results_that_differ_are_named(
    learning: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import verify

    played = learning.records.summary([1.0, 2.0])
    stored = {"seed": 3, "commit": "0123456789abcdef", "steps": 64, "digest": "a", "evaluation": {"sampled": played}}
    for seed, changes in ((3, {}), (4, {"digest": "b", "evaluation": {"sampled": learning.records.summary([1.0])}})):
        for name, record in (("stored", stored), ("repeated", stored | changes)):
            path = learning.records.result_path(tmp_path / name, "table", "task", seed)
            learning.records.write_record(path, record | {"seed": seed})
    # a run that has no stored result
    path = learning.records.result_path(tmp_path / "repeated", "table", "task", 5)
    learning.records.write_record(path, stored | {"seed": 5})
    assert verify.compare(tmp_path / "stored", tmp_path / "repeated", "table", "task") == 1
    assert capsys.readouterr().out.splitlines() == [
        "task seed 3: equal",
        "task seed 4: differs in digest, sampled evaluation (stored by commit 0123456789ab)",
    ]
