"""Figures of the learning curves of one run, or of several experiments for comparison."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from lockstep.report.bands import QUARTILE_CURVES, Band, Points, median_band, points
from lockstep.report.curve import mark_goal, show_legend, show_return
from lockstep.report.experiments import Experiment, RecordedRun
from lockstep.report.hover import Readouts, Series, readouts
from lockstep.report.style import COLORS, GRAY, Over, Unit, axis, saved_figure

__all__ = ["METRICS", "Metric", "band_text", "colors_of", "curve_of", "draw_curves", "draw_metric", "draw_returns"]


class Metric(NamedTuple):
    """Title and unit of a metric."""

    title: str
    unit: str


METRICS = {
    "return": Metric("mean return", "reward per episode"),
    "length_mean": Metric("mean length of episodes", "steps"),
    "policy_loss": Metric("policy loss", "advantages, no unit"),
    "value_loss": Metric("value loss", "½ squared error"),
    "explained_variance": Metric("explained variance", "of the value targets"),
    "entropy": Metric("entropy", "nats"),
    "approx_kl": Metric("KL divergence", "nats"),
    "clip_frac": Metric("clip fraction", "fraction of samples"),
    "learning_rate": Metric("learning rate", "per step"),
    "intrinsic_return": Metric("intrinsic return", "scaled, per episode"),
}
"""Metrics of the figures, in their order. `return` is the metric of `curve_of`."""
_EVALUATION = Metric("mean return of evaluations", "reward per episode, most probable actions")
_PLAIN = [["return"] * 4, ["length_mean", "policy_loss", "value_loss", "explained_variance"]]
_PLAIN += [["entropy", "approx_kl", "clip_frac", "learning_rate"]]
_CURIOUS = [["return"] * 3, ["intrinsic_return", "length_mean", "policy_loss"]]
_CURIOUS += [["value_loss", "explained_variance", "entropy"], ["approx_kl", "clip_frac", "learning_rate"]]
_REASONS = {"return": "no episode has ended yet", "evaluation": "no checkpoint was evaluated during training"}
_DECADES = 100
"""Ratio of the largest to the smallest value loss from which its axis is logarithmic."""
_LOWEST_EXPLAINED = -1.1
"""Lower end of the axis of the explained variance. Where the targets hardly vary it has large negative values, which would hide all others."""
_LOWER = "#BBBBBB"
"""Color of the experiments that are not highlighted."""


def draw_returns(
    experiments: Sequence[Experiment], path: Path, over: Over, goal: float | None = None, metric: str = "return"
) -> None:
    """Draw the mean return of experiments over steps or seconds, 900 pixels wide and at least 560 high: the legend may need more.

    Every experiment has the median of its runs, a band as in `median_band`, and its runs as thin lines. Of more than 8 experiments, those with
    the lower returns at the end are gray. `metric` is `return`, or `evaluation` for the mean returns of evaluations during training. Raises
    ValueError if a run has no returns yet, if the runs of an experiment share no range of steps, or as `saved_figure` does.
    """
    _check(experiments, over, [metric])
    title, measure = _EVALUATION if metric == "evaluation" else METRICS["return"]
    with saved_figure(path, 9, 5.2 + 0.3 * min(len(experiments), len(COLORS) + 1)) as (matplotlib, figure):
        axes = figure.subplots()
        axes.set(title=_title(experiments, title), ylabel=f"{title}\n({measure})")
        _show(matplotlib, axes, experiments, metric, over)
        _finish(matplotlib, figure, axes, experiments, goal)


def draw_curves(experiments: Sequence[Experiment], path: Path, over: Over, goal: float | None = None) -> None:
    """Draw all metrics of `METRICS` that the runs have over steps or seconds.

    The figure is 1500 pixels wide and at least 950 high: the legend may need more. Raises ValueError as `draw_returns` does.
    """
    runs = _runs(experiments)
    layout = _CURIOUS if any(len(curve_of(run, "intrinsic_return", over)[0]) for run in runs) else _PLAIN
    _check(experiments, over, list(METRICS))
    legend = 0.3 * min(len(experiments), len(COLORS) + 1) if len(runs) > 1 else 0
    with saved_figure(path, 15, 0.5 + 3 * len(layout) + legend) as (matplotlib, figure):
        panels = figure.subplot_mosaic(layout)
        for name, axes in panels.items():
            axes.set_title(METRICS[name].title, fontsize=12)
            axes.set_ylabel(METRICS[name].unit)
            if len(runs) > 1 or name != "return":
                _show(matplotlib, axes, experiments, name, over)
            elif len(curve_of(runs[0], "return", over)[0]):
                show_return(matplotlib, axes, runs[0].metrics, goal, over, runs[0].evaluations)
                show_legend(axes)
        if len(runs) > 1:
            _finish(matplotlib, figure, panels["return"], experiments, goal)
        figure.suptitle(runs[0].title if len(runs) == 1 else _title(experiments, "learning curves"), fontsize=14)


def draw_metric(
    experiments: Sequence[Experiment],
    name: str,
    path: Path,
    over: Over,
    goal: float | None = None,
    size: tuple[float, float] = (4.8, 3.2),
) -> Readouts:
    """Draw one metric of `METRICS` over steps or seconds, without title. Only the returns of one run over steps have a legend.

    `size` is in units of 100 pixels. A run must have values of the metric. Return the values to show at the pointer. Raises ValueError as
    `saved_figure` does.
    """
    runs = _runs(experiments)
    with saved_figure(path, *size) as (matplotlib, figure):
        axes = figure.subplots()
        axes.set_ylabel(METRICS[name].unit)
        if name == "return" and len(runs) == 1:
            series, unit = show_return(matplotlib, axes, runs[0].metrics, goal, over, runs[0].evaluations)
            if over == "steps":
                show_legend(axes)
        else:
            series, unit = _show(matplotlib, axes, experiments, name, over)
            if goal is not None and name == "return":
                mark_goal(axes, goal, GRAY)
        return readouts(axes, series, unit)


def _runs(experiments: Sequence[Experiment]) -> list[RecordedRun]:
    return [run for experiment in experiments for run in experiment.runs]


def _title(experiments: Sequence[Experiment], text: str) -> str:
    runs = _runs(experiments)
    if len(runs) == 1:
        return f"{runs[0].title}: {text}"
    env_id = runs[0].fields.get("env.id")
    return f"{env_id}: {text}, {len(runs)} runs" if env_id else text.capitalize()


def curve_of(run: RecordedRun, name: str, over: Over) -> Points:
    """Return the points of a metric of `METRICS`, or of `evaluation`, the mean return of evaluations during training.

    `return` is the mean return of the last 20 episodes. If the run never had 20 episodes, it is that of each iteration.
    """
    if name == "evaluation":
        return points(run.evaluations, "return_mean", over)
    if name != "return":
        return points(run.metrics, name, over)
    smooth = points(run.metrics, "return_mean_20", over)
    return smooth if len(smooth[0]) else points(run.metrics, "return_mean", over)


def colors_of(experiments: Sequence[Experiment]) -> list[str]:
    """Return the color of each experiment. Of more than 8, those with the lower returns at the end share one light gray."""
    if len(experiments) <= len(COLORS):
        return list(COLORS[: len(experiments)])
    ends = [_last_return(experiment) for experiment in experiments]
    best = sorted(sorted(range(len(ends)), key=lambda number: -ends[number])[: len(COLORS)])
    colors = dict(zip(best, COLORS, strict=True))
    return [colors.get(number, _LOWER) for number in range(len(experiments))]


def _last_return(experiment: Experiment) -> float:
    """Return the median of the runs' last returns; -inf if an episode of none of them has ended."""
    curves = [curve_of(run, "return", "steps")[1] for run in experiment.runs]
    return float(np.median([y[-1] for y in curves if len(y)] or [-np.inf]))


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
    return median_band([curve_of(run, name, over) for run in experiment.runs])


def _show(
    matplotlib: ModuleType, axes: Any, experiments: Sequence[Experiment], name: str, over: Over
) -> tuple[list[Series], Unit]:
    """Draw a metric of all experiments. Return the medians of the highlighted ones, and the unit of the axis."""
    bands = [_band(experiment, name, over) for experiment in experiments]
    unit = axis(matplotlib, axes, over, max((band.x[-1] for band in bands if band), default=0.0))
    single, series = len(_runs(experiments)) == 1, []
    for experiment, band, color in zip(experiments, bands, colors_of(experiments), strict=True):
        if band is None:
            continue
        x, lower = band.x / unit.divisor, color == _LOWER
        width, order = (1.2, 3.0) if single else (0.8, 1.5) if lower else (1.8, 3.0)
        marker = "o" if len(x) == 1 else None
        axes.plot(x, band.median, color=color, linewidth=width, marker=marker, label=experiment.label, zorder=order)
        if not lower:
            series.append(Series("" if single else experiment.label, color, band.x, band.median))
        if len(experiment.runs) > 1 and not lower:
            axes.fill_between(x, band.low, band.high, color=color, alpha=0.2, linewidth=0)
            axes.plot(x, band.curves.T, color=color, linewidth=0.6, alpha=0.45)
    if not series:
        axes.text(0.5, 0.5, "no data yet", transform=axes.transAxes, ha="center", va="center")
    if name == "explained_variance":
        axes.set_ylim(bottom=max(axes.get_ylim()[0], _LOWEST_EXPLAINED))
    if name == "value_loss":
        _show_decades(axes, [band.median for band in bands if band])
    return series, unit


def _show_decades(axes: Any, losses: Sequence[Any]) -> None:
    values = np.concatenate(losses) if losses else np.ones(1)
    if values.min() > 0 and values.max() >= _DECADES * values.min():
        axes.set_yscale("log")


def _finish(
    matplotlib: ModuleType, figure: Any, axes: Any, experiments: Sequence[Experiment], goal: float | None
) -> None:
    """Draw the goal, and one legend for the whole figure below it."""
    if goal is not None:
        mark_goal(axes, goal, GRAY)
    entries = [
        (line, label)
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        if line.get_color() != _LOWER
    ]
    if lower := colors_of(experiments).count(_LOWER):
        entries.append((matplotlib.lines.Line2D([], [], color=_LOWER), f"{lower} with lower returns at the end"))
    if text := band_text(experiments):
        entries.append((matplotlib.patches.Patch(color=GRAY, alpha=0.2, linewidth=0), text))
    lines, labels = zip(*entries, strict=True)
    columns = 1 if max(map(len, labels)) > 40 else 2
    figure.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False)


def band_text(experiments: Sequence[Experiment]) -> str:
    """Describe the lines and the bands of experiments with several runs; return an empty string if there are none."""
    counts = [len(experiment.runs) for experiment in experiments if len(experiment.runs) > 1]
    if not counts:
        return ""
    few, many = min(counts) < QUARTILE_CURVES, max(counts) >= QUARTILE_CURVES
    parts = ["first to third quartile"] * many
    parts += [f"lowest to highest{f' of fewer than {QUARTILE_CURVES} runs' if many else ''}"] * few
    return f"median, runs (thin), {', '.join(parts)}"
