"""Figures of the learning curves of one run, or of several experiments for comparison."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from lockstep.report.bands import Band, Points, points, quartile_band
from lockstep.report.curve import show_return
from lockstep.report.experiments import Experiment, RecordedRun
from lockstep.report.style import BLUE, COLORS, GRAY, Over, axis, saved_figure

__all__ = ["LABELS", "curve_of", "draw_curves", "draw_metric", "draw_returns"]

LABELS = {
    "return": "mean return\n(reward per episode)",
    "intrinsic_return": "intrinsic return\n(scaled, per episode)",
    "policy_loss": "policy loss\n(advantages, no unit)",
    "value_loss": "value loss\n(½ squared error)",
    "entropy": "entropy (nats)",
    "approx_kl": "KL divergence (nats)",
}
"""Label of the vertical axis, by metric. `return` is the metric of `curve_of`."""
_EVALUATION = "mean return of evaluations (most probable actions)"
_PLAIN = [["return", "return", "value_loss"], ["policy_loss", "entropy", "approx_kl"]]
_CURIOUS = [["return", "intrinsic_return", "value_loss"], ["policy_loss", "entropy", "approx_kl"]]
_REASONS = {"return": "no episode has ended yet", "evaluation": "no checkpoint was evaluated during training"}
_LINES = ("-", "--", ":", "-.")


def draw_returns(
    experiments: Sequence[Experiment], path: Path, over: Over, goal: float | None = None, metric: str = "return"
) -> None:
    """Draw the mean return of experiments over steps or seconds, 900 pixels wide and at least 560 high: the legend may need more.

    Every experiment has the median of its runs and a band between the quartiles. `metric` is `return`, or `evaluation` for the mean returns of
    evaluations during training. Raises ValueError if a run has no returns yet, if the runs of an experiment share no range of steps, or as
    `saved_figure` does.
    """
    _check(experiments, over, [metric])
    with saved_figure(path, 9, 5.2 + 0.3 * len(experiments)) as (matplotlib, figure):
        axes = figure.subplots()
        axes.set_ylabel(_EVALUATION if metric == "evaluation" else LABELS["return"].replace("\n", " "))
        _show(matplotlib, axes, experiments, metric, over)
        _finish(matplotlib, figure, axes, experiments, goal)


def draw_curves(experiments: Sequence[Experiment], path: Path, over: Over, goal: float | None = None) -> None:
    """Draw return, losses, entropy and KL over steps or seconds, with curiosity also the intrinsic return.

    The figure is 1300 pixels wide and at least 750 high: the legend may need more. Raises ValueError as `draw_returns` does.
    """
    layout = _CURIOUS if any(len(curve_of(run, "intrinsic_return", over)[0]) for run in _runs(experiments)) else _PLAIN
    _check(experiments, over, list(LABELS))
    runs = _runs(experiments)
    with saved_figure(path, 13, 7.5 + (0.3 * len(experiments) if len(runs) > 1 else 0)) as (matplotlib, figure):
        panels = figure.subplot_mosaic(layout)
        for name, axes in panels.items():
            axes.set_ylabel(LABELS[name])
            if len(runs) > 1 or name != "return":
                _show(matplotlib, axes, experiments, name, over, label=name != "return" or len(runs) > 1)
            elif len(curve_of(runs[0], "return", over)[0]):
                show_return(matplotlib, axes, runs[0].metrics, goal, over, runs[0].evaluations)
        if len(runs) > 1:
            _finish(matplotlib, figure, panels["return"], experiments, goal)
        else:
            figure.suptitle(runs[0].name, fontsize=13)


def draw_metric(run: RecordedRun, name: str, path: Path, over: Over, goal: float | None = None) -> None:
    """Draw one metric of `LABELS` over steps or seconds, 480 by 320 pixels. The run must have values of the metric.

    Raises ValueError as `saved_figure` does.
    """
    with saved_figure(path, 4.8, 3.2) as (matplotlib, figure):
        axes = figure.subplots()
        axes.set_ylabel(LABELS[name])
        if name == "return":
            show_return(matplotlib, axes, run.metrics, goal, over, run.evaluations)
        else:
            _show(matplotlib, axes, [Experiment("", [run])], name, over, label=False)


def _runs(experiments: Sequence[Experiment]) -> list[RecordedRun]:
    return [run for experiment in experiments for run in experiment.runs]


def curve_of(run: RecordedRun, name: str, over: Over) -> Points:
    """Return the points of a metric of `LABELS`, or of `evaluation`, the mean return of evaluations during training.

    `return` is the mean return of the last 20 episodes. If the run never had 20 episodes, it is that of each iteration.
    """
    if name == "evaluation":
        return points(run.evaluations, "return_mean", over)
    if name != "return":
        return points(run.metrics, name, over)
    smooth = points(run.metrics, "return_mean_20", over)
    return smooth if len(smooth[0]) else points(run.metrics, "return_mean", over)


def _check(experiments: Sequence[Experiment], over: Over, names: Sequence[str]) -> None:
    """Raise ValueError if a run has no values of any metric in `names`, or if the runs of an experiment share no range of steps."""
    for experiment in experiments:
        for run in experiment.runs:
            if not any(len(curve_of(run, name, over)[0]) for name in names):
                why = _REASONS.get(names[0], "") if len(names) == 1 else "the run has no metrics yet"
                raise ValueError(f"{run.name}: no data to plot: {why}")
        if not any(_band(experiment, name, over) for name in names):
            runs = ", ".join(run.name for run in experiment.runs)
            raise ValueError(f"{runs}: the runs share no range of {over} yet; plot them separately")


def _band(experiment: Experiment, name: str, over: Over) -> Band | None:
    return quartile_band([curve_of(run, name, over) for run in experiment.runs])


def _show(
    matplotlib: ModuleType, axes: Any, experiments: Sequence[Experiment], name: str, over: Over, label: bool = True
) -> None:
    bands = [_band(experiment, name, over) for experiment in experiments]
    divisor = axis(matplotlib, axes, over, max((band.x[-1] for band in bands if band), default=0.0))
    single = len(_runs(experiments)) == 1
    for number, (experiment, band) in enumerate(zip(experiments, bands, strict=True)):
        if band is None:
            continue
        color, x = COLORS[number % len(COLORS)], band.x / divisor
        axes.plot(
            x,
            band.median,
            color=BLUE if single else color,
            linewidth=1.2 if single else 1.8,
            linestyle=_LINES[number // len(COLORS) % len(_LINES)],
            marker="o" if len(x) == 1 else None,
            label=experiment.label if label else None,
        )
        if len(experiment.runs) > 1:
            axes.fill_between(x, band.low, band.high, color=color, alpha=0.2, linewidth=0)
    if not any(bands):
        axes.text(0.5, 0.5, "no data yet", transform=axes.transAxes, ha="center", va="center")


def _finish(
    matplotlib: ModuleType, figure: Any, axes: Any, experiments: Sequence[Experiment], goal: float | None
) -> None:
    """Draw the goal, and one legend for the whole figure below it."""
    if goal is not None:
        axes.axhline(goal, color=GRAY, linewidth=1.5, linestyle="--", label=f"goal {goal:g}")
    lines, labels = axes.get_legend_handles_labels()
    if any(len(experiment.runs) > 1 for experiment in experiments):
        lines.append(matplotlib.patches.Patch(color=GRAY, alpha=0.2, linewidth=0))
        labels.append("median, first to third quartile")
    columns = 1 if max(map(len, labels), default=0) > 40 else 2
    figure.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False)
