"""Presets reach their goals. These tests run the presets that take seconds; benchmarks/presets.py runs all on three seeds."""

import json
from pathlib import Path

import pytest

from lockstep import presets
from lockstep.config.compose import load

pytestmark = pytest.mark.slow


def reached_at(run_cli, tmp_path: Path, preset: str, seed: int, *more: object) -> int:
    """Train and return the number of environment steps after which the mean return reached the goal of the preset."""
    finished = run_cli("train", preset, "--seed", seed, "--name", "run", "--run.progress", "off", *more)
    assert finished.rc == 0, finished
    rows = [json.loads(line) for line in (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()]
    goal = json.loads((tmp_path / "runs" / "run" / "config.json").read_text())["run"]["solved_return"]
    solved = [row["env_steps"] for row in rows if row["return_mean_20"] is not None and row["return_mean_20"] >= goal]
    assert solved, f"best: {max(row['return_mean_20'] or -1e9 for row in rows)}"
    assert f"after {solved[0]:,} steps" in finished.stdout
    return solved[0]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (2, 3))])
def test_cartpole_is_solved_within_100000_steps(run_cli, tmp_path: Path, seed: int) -> None:
    goal = load(presets.read("cartpole"), None, {}).run.solved_return
    assert reached_at(run_cli, tmp_path, "cartpole", seed, "--run.stop-at-return", goal) <= 100_000


@pytest.mark.exhaustive
def test_pendulum_dense_is_solved_within_150000_steps(run_cli, tmp_path: Path) -> None:
    # the settings do not depend on the budget: a run of 150,000 steps begins with the same iterations
    assert reached_at(run_cli, tmp_path, "pendulum-dense", 1, "--total-steps", 80_000) <= 150_000


@pytest.mark.parametrize(
    ("preset", "budget"),
    [("cartpole", 100_000), pytest.param("pendulum-dense", 150_000, marks=pytest.mark.exhaustive)],
)
def test_presets_are_solved_with_a_lag_of_one_update(run_cli, tmp_path: Path, preset: str, budget: int) -> None:
    goal = load(presets.read(preset), None, {}).run.solved_return
    lag = ("--plan", "1:1", "--plan.lag", 1, "--run.stop-at-return", goal)
    assert reached_at(run_cli, tmp_path, preset, 1, *lag) <= budget
