"""Figures of the learning curves of several runs, checked through their text."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.test_curve import near

from lockstep.report import curves
from lockstep.report.curves import band_text, colors_of, draw_curves, draw_metric, draw_returns
from lockstep.report.experiments import Experiment, RecordedRun, group_by_experiment

pytest.importorskip("matplotlib", reason="pip install 'lockstep-rl[report]'")
NAMES = (
    "return_mean",
    "return_mean_20",
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_frac",
    "length_mean",
)


def run(seed: int, clip: float = 0.2, length: int = 20, first: int = 1, **more: float) -> RecordedRun:
    tree = {"ppo": {"clip": clip}, "run": {"seed": seed, "name": f"run-{seed}"}}
    rows: list[dict[str, Any]] = [
        {"env_steps": 100 * step, "seconds": 60.0 * step, **dict.fromkeys(NAMES, step * seed * clip), **more}
        for step in range(first, first + length)
    ]
    return RecordedRun(f"run-{seed}", tree, rows)


def test_comparison_of_experiments(tmp_path: Path) -> None:
    from matplotlib.image import imread

    experiments = group_by_experiment([run(1), run(2), run(3), run(4, 0.1), run(5, 0.1)])
    for name in ("a.svg", "b.svg"):
        draw_returns(experiments, tmp_path / name, "steps", 3.0)
    text = (tmp_path / "a.svg").read_text()
    for words in (
        "environment steps",
        "(reward per episode)",
        "ppo.clip 0.2 (3 seeds: run-1, run-2, run-3)",
        "goal 3",
        "median, runs (thin), lowest to highest",
    ):
        assert words in text
    assert text == (tmp_path / "b.svg").read_text()
    draw_returns(experiments, tmp_path / "a.png", "steps")
    picture = imread(tmp_path / "a.png")
    assert near(picture, "0072B2") > 1000
    assert near(picture, "D55E00") > 1000
    assert near(picture, "CCE3F0") > 1000  # the band: the blue with an opacity of 0.2 on white


def test_comparison_of_evaluations(tmp_path: Path) -> None:
    rows = [{"env_steps": 100 * step, "seconds": 1.0 * step, "return_mean": 2.0 * step} for step in (5, 10, 20)]
    runs = [dataclasses.replace(run(seed), evaluations=rows) for seed in (1, 2)]
    draw_returns(group_by_experiment(runs), tmp_path / "a.svg", "steps", metric="evaluation")
    text = (tmp_path / "a.svg").read_text()
    for words in ("mean return of evaluations", "most probable actions", "2 seeds", "environment steps"):
        assert words in text
    with pytest.raises(ValueError, match="run-3: no data to plot: no checkpoint was evaluated during training"):
        draw_returns(group_by_experiment([*runs, run(3)]), tmp_path / "b.svg", "steps", metric="evaluation")


def test_training_curves_over_wall_time(tmp_path: Path) -> None:
    draw_curves(group_by_experiment([run(1), run(2)]), tmp_path / "a.svg", "seconds")
    text = (tmp_path / "a.svg").read_text()
    for words in (
        "wall time (min)",
        "policy loss",
        "value loss",
        "entropy",
        "KL divergence",
        "clip fraction",
        "2 seeds",
    ):
        assert words in text
    assert "intrinsic return" not in text
    assert "lowest to highest" in text


def test_single_run_also_shows_single_iterations(tmp_path: Path) -> None:
    draw_curves(group_by_experiment([run(1, intrinsic_return=2.0)]), tmp_path / "a.svg", "steps", 475)
    text = (tmp_path / "a.svg").read_text()
    for words in ("run-1", "last 20 episodes", "iteration", "goal 475 ↑", "intrinsic return"):
        assert words in text


def test_metric_without_values_is_rejected(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if "return" not in name} for row in run(1).metrics]
    draw_curves(group_by_experiment([dataclasses.replace(run(1), metrics=rows)]), tmp_path / "a.svg", "steps")
    assert "entropy" in (tmp_path / "a.svg").read_text()


def test_runs_without_data_are_rejected(tmp_path: Path) -> None:
    empty = dataclasses.replace(run(2), metrics=[])
    with pytest.raises(ValueError, match="run-2: no data to plot: no episode has ended yet"):
        draw_returns(group_by_experiment([run(1), empty]), tmp_path / "a.png", "steps")
    with pytest.raises(ValueError, match="run-2: no data to plot: the run has no metrics yet"):
        draw_curves(group_by_experiment([empty]), tmp_path / "a.png", "steps")
    with pytest.raises(ValueError, match="run-1, run-2: the runs share no range of steps yet; plot them separately"):
        draw_returns(group_by_experiment([run(1, length=2), run(2, first=9)]), tmp_path / "a.png", "steps")
    assert list(tmp_path.iterdir()) == []


def test_unwritable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file/a\.png cannot be written: .*; choose another path with --out"):
        draw_returns(group_by_experiment([run(1)]), tmp_path / "file" / "a.png", "steps")


def test_the_figure_grows_with_the_legend_which_names_the_best_of_many(tmp_path: Path) -> None:
    from matplotlib.image import imread

    experiments = group_by_experiment([run(1, clip) for clip in np.linspace(0.1, 0.32, 12)])
    draw_returns(experiments, tmp_path / "a.png", "steps")
    assert imread(tmp_path / "a.png").shape[:2] == (790, 900)
    colors = colors_of(experiments)
    assert len(set(colors[:4])) == 1
    assert len(set(colors[4:])) == 8
    draw_returns(experiments, tmp_path / "a.svg", "steps")
    text = (tmp_path / "a.svg").read_text()
    assert "4 with lower returns at the end" in text
    assert "ppo.clip 0.32" in text
    assert "ppo.clip 0.12" not in text


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((1, 1), ""),
        ((5,), "median, runs (thin), first to third quartile"),
        ((2, 4), "median, runs (thin), first to third quartile, lowest to highest of fewer than 4 runs"),
    ],
)
def test_the_legend_describes_the_bands(counts: tuple[int, ...], text: str) -> None:
    runs = [run(seed, 0.1 * number) for number, count in enumerate(counts, 1) for seed in range(count)]
    assert band_text(group_by_experiment(runs)) == text


@pytest.mark.parametrize(("smallest", "scale"), [(0.001, "log"), (0.5, "linear"), (-1.0, "linear")])
def test_value_losses_over_decades_have_a_logarithmic_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smallest: float, scale: str
) -> None:
    rows = [{"env_steps": 100 * step, "value_loss": loss} for step, loss in enumerate((1.0, smallest), 1)]
    scales = []
    monkeypatch.setattr(curves, "readouts", lambda axes, *_: scales.append(axes.get_yscale()))
    experiments = [Experiment("", [dataclasses.replace(run(1), metrics=rows)])]
    draw_metric(experiments, "value_loss", tmp_path / "a.svg", "steps")
    assert scales == [scale]
