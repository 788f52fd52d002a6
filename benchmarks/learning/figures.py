"""Figures of a table: learning curves, and performance profiles with the aggregate over all tasks."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from aggregate import Band, Floats, curve, estimate, profile
from table_results import Runs

from lockstep.report.style import BLUE, GRAY, GREEN, VERMILION, axis, saved_figure

PROGRAMS = (("lockstep", "lockstep", BLUE), ("sb3", "Stable-Baselines3 (zoo)", VERMILION))
"""Key, name and color of each program."""
PUBLISHED: Mapping[str, Any] = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
"""Learning curves that others have published, by task: name, source and curve."""
_COLUMNS = 3
_POINTS = 40


def draw_curves(lockstep: Mapping[str, Runs], sb3: Mapping[str, Runs], path: Path) -> None:
    """Draw the learning curves of all tasks that lockstep has trained, one panel each."""
    tasks, found = list(lockstep), {"lockstep": lockstep, "sb3": sb3}
    rows = -(-len(tasks) // _COLUMNS)
    with saved_figure(path, 4.0 * min(len(tasks), _COLUMNS), 2.9 * rows + 0.3) as (matplotlib, figure):
        for place, name in enumerate(tasks):
            axes = figure.add_subplot(rows, min(len(tasks), _COLUMNS), place + 1)
            axes.axhline(lockstep[name].task.wanted, color=GRAY, linewidth=1, linestyle="--")
            for program, label, color in PROGRAMS:
                runs = found[program].get(name)
                if runs and (curves := _drawable(runs)):
                    _draw_band(axes, *_band(curves), label, color)
            if published := PUBLISHED.get(name):
                axes.plot(*published["curve"].values(), color=GREEN, label=published["name"])
            axis(matplotlib, axes, "steps", lockstep[name].task.steps, label=place >= len(tasks) - _COLUMNS)
            axes.set_title(name, fontsize=12)
        _legend(figure)


def draw_profiles(pooled: Mapping[str, Sequence[Sequence[float]]], path: Path) -> None:
    """Draw the share of runs above each normalized score, and the interquartile means over all tasks.

    `pooled` has the normalized scores of each program by task, under the program's name in `PROGRAMS`; none if they are not complete.
    """
    with saved_figure(path, 10.0, 4.0) as (_, figure):
        left, right = figure.subplots(1, 2, width_ratios=(2, 1))
        thresholds = np.linspace(0, 1.25, 51)
        for place, (program, label, color) in enumerate(PROGRAMS):
            if scores := pooled.get(program):
                band = profile(scores, thresholds)
                _draw_band(left, thresholds, band, label, color)
                total = estimate(scores)
                right.barh(-place, total.value, 0.6, color=color, alpha=0.4)
                right.plot([total.low, total.high], [-place, -place], color=color, linewidth=3)
        left.set(xlabel="normalized score τ", ylabel="share of runs with score > τ", ylim=(0, 1.02))
        right.set(xlabel="IQM of normalized scores", yticks=[], ylim=(-1.5, 0.5))
        right.axvline(1, color=GRAY, linewidth=1, linestyle="--")
        _legend(figure)


def _drawable(runs: Runs) -> list[dict[str, list[float]]]:
    """Return the learning curves with at least two points: other runs were too short to finish episodes."""
    return [record["curve"] for record in runs.records if len(record["curve"]["steps"]) > 1]


def _band(curves: Sequence[dict[str, list[float]]]) -> tuple[Floats, Band]:
    """Return common steps and the interquartile mean of the curves at these steps."""
    steps = np.linspace(max(one["steps"][0] for one in curves), min(one["steps"][-1] for one in curves), _POINTS)
    return steps, curve(np.array([np.interp(steps, one["steps"], one["return_mean"]) for one in curves]))


def _draw_band(axes: Any, places: Floats, band: Band, label: str, color: str) -> None:
    axes.plot(places, band.value, color=color, label=label)
    axes.fill_between(places, band.low, band.high, color=color, alpha=0.2, linewidth=0)


def _legend(figure: Any) -> None:
    """Name the curves above the figure, if there are several."""
    lines = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    names = [label for _, label, _ in PROGRAMS] + [published["name"] for published in PUBLISHED.values()]
    shown = [(lines[label], label) for label in names if label in lines]
    if len(shown) > 1:
        handles, labels = zip(*shown, strict=True)
        figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
