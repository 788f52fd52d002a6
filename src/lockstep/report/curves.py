"""Learning curves of one run, or of several experiments beside each other."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from lockstep.report.bands import Band, Points, join, points
from lockstep.report.curve import show_return
from lockstep.report.experiments import Experiment, Recorded
from lockstep.report.style import BLUE, COLOURS, GREY, Over, axis, picture

__all__ = ["LABELS", "curve_of", "draw_curves", "draw_metric", "draw_returns"]

LABELS = {
    "return": "mean return\n(reward per episode)",
    "intrinsic_return": "intrinsic return\n(scaled, per episode)",
    "policy_loss": "policy loss\n(advantages, no unit)",
    "value_loss": "value loss\n(½ squared error)",
    "entropy": "entropy (nats)",
    "approx_kl": "KL divergence (nats)",
}
"""What is drawn, and how its axis is labelled."""
_PLAIN = [["return", "return", "value_loss"], ["policy_loss", "entropy", "approx_kl"]]
_CURIOUS = [["return", "intrinsic_return", "value_loss"], ["policy_loss", "entropy", "approx_kl"]]
_LINES = ("-", "--", ":", "-.")


def draw_returns(experiments: Sequence[Experiment], path: Path, over: Over, goal: float | None = None) -> None:
    """Draws the mean return of experiments over steps or seconds, 900 by 560 pixels and more for a long legend: of every one the median of
    its runs, and between the quartiles a band.

    Raises ValueError, in one line, for what `picture` does, and if there is nothing to draw.
    """
    _check(experiments, over, ["return"])
    with picture(path, 9, 5.2 + 0.3 * len(experiments)) as (matplotlib, figure):
        axes = figure.subplots()
        axes.set_ylabel(LABELS["return"].replace("\n", " "))
        _show(matplotlib, axes, experiments, "return", over)
        _finish(matplotlib, figure, axes, experiments, goal)


def draw_curves(experiments: Sequence[Experiment], path: Path, over: Over, goal: float | None = None) -> None:
    """Draws return, losses, entropy and KL over steps or seconds, 1300 by 750 pixels and more for a long legend; with curiosity also the
    intrinsic return. See `draw_returns`, also for what is raised.
    """
    layout = _CURIOUS if any(len(curve_of(run, "intrinsic_return", over)[0]) for run in _runs(experiments)) else _PLAIN
    _check(experiments, over, list(LABELS))
    runs = _runs(experiments)
    with picture(path, 13, 7.5 + (0.3 * len(experiments) if len(runs) > 1 else 0)) as (matplotlib, figure):
        panels = figure.subplot_mosaic(layout)
        for name, axes in panels.items():
            axes.set_ylabel(LABELS[name])
            if len(runs) > 1 or name != "return":
                _show(matplotlib, axes, experiments, name, over, label=name != "return" or len(runs) > 1)
            elif _has_return(runs[0], over):
                show_return(matplotlib, axes, runs[0].metrics, goal, over)
        if len(runs) > 1:
            _finish(matplotlib, figure, panels["return"], experiments, goal)
        else:
            figure.suptitle(runs[0].name, fontsize=13)


def draw_metric(run: Recorded, name: str, path: Path, over: Over, goal: float | None = None) -> None:
    """Draws one of `LABELS` of a run over steps or seconds, 480 by 320 pixels; it must have it. See `draw_returns` for what is raised."""
    with picture(path, 4.8, 3.2) as (matplotlib, figure):
        axes = figure.subplots()
        axes.set_ylabel(LABELS[name])
        if name == "return":
            show_return(matplotlib, axes, run.metrics, goal, over)
        else:
            _show(matplotlib, axes, [Experiment("", [run])], name, over, label=False)


def _runs(experiments: Sequence[Experiment]) -> list[Recorded]:
    return [run for experiment in experiments for run in experiment.runs]


def _has_return(run: Recorded, over: Over) -> bool:
    return len(curve_of(run, "return", over)[0]) > 0


def curve_of(run: Recorded, name: str, over: Over) -> Points:
    """Points of a metric; the return is that of the last 20 episodes, or where there were never so many, of iterations."""
    if name != "return":
        return points(run.metrics, name, over)
    smooth = points(run.metrics, "return_mean_20", over)
    return smooth if len(smooth[0]) else points(run.metrics, "return_mean", over)


def _check(experiments: Sequence[Experiment], over: Over, names: Sequence[str]) -> None:
    """Raises ValueError if a run has nothing of `names`, or the runs of an experiment have none of their steps in common."""
    for experiment in experiments:
        for run in experiment.runs:
            if not any(len(curve_of(run, name, over)[0]) for name in names):
                why = "no episode has ended" if list(names) == ["return"] else "it has no metrics"
                raise ValueError(f"{run.name}: there is nothing to draw yet, because {why}")
        if not any(_band(experiment, name, over) for name in names):
            runs = ", ".join(run.name for run in experiment.runs)
            raise ValueError(f"{runs}: they have no {over} in common yet; draw them one by one")


def _band(experiment: Experiment, name: str, over: Over) -> Band | None:
    return join([curve_of(run, name, over) for run in experiment.runs])


def _show(
    matplotlib: ModuleType, axes: Any, experiments: Sequence[Experiment], name: str, over: Over, label: bool = True
) -> None:
    bands = [_band(experiment, name, over) for experiment in experiments]
    divisor = axis(matplotlib, axes, over, max((band.right[-1] for band in bands if band), default=0.0))
    alone = len(_runs(experiments)) == 1
    for number, (experiment, band) in enumerate(zip(experiments, bands, strict=True)):
        if band is None:
            continue
        colour, right = COLOURS[number % len(COLOURS)], band.right / divisor
        axes.plot(
            right,
            band.middle,
            color=BLUE if alone else colour,
            linewidth=1.2 if alone else 1.8,
            linestyle=_LINES[number // len(COLOURS) % len(_LINES)],
            marker="o" if len(right) == 1 else None,
            label=experiment.label if label else None,
        )
        if len(experiment.runs) > 1:
            axes.fill_between(right, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
    if not any(bands):
        axes.text(0.5, 0.5, "none yet", transform=axes.transAxes, ha="center", va="center")


def _finish(
    matplotlib: ModuleType, figure: Any, axes: Any, experiments: Sequence[Experiment], goal: float | None
) -> None:
    """The goal, and one legend below for the whole figure."""
    if goal is not None:
        axes.axhline(goal, color=GREY, linewidth=1.5, linestyle="--", label=f"goal {goal:g}")
    lines, labels = axes.get_legend_handles_labels()
    if any(len(experiment.runs) > 1 for experiment in experiments):
        lines.append(matplotlib.patches.Patch(color=GREY, alpha=0.2, linewidth=0))
        labels.append("median, first to third quartile")
    columns = 1 if max(map(len, labels), default=0) > 40 else 2
    figure.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False)
