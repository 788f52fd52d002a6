"""Figure of the learning curve of one run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.report.bands import points
from lockstep.report.hover import Series
from lockstep.report.style import BLUE, GREEN, SKY, VERMILION, Over, Unit, axis, check_name, saved_figure

Rows = Sequence[Mapping[str, Any]]

__all__ = ["draw_curve", "mark_goal", "show_legend", "show_return"]

_COLUMN = 2.15
"""Width of a column of the legend, in units of 100 pixels."""


def draw_curve(
    metrics: Rows, title: str, path: Path, goal: float | None = None, over: Over = "steps", evaluations: Rows = ()
) -> None:
    """Draw the mean return over environment steps or seconds, 800 by 500 pixels.

    `metrics` are rows of metrics.jsonl, and `evaluations` of evaluations.jsonl, whose mean returns are drawn too. `goal` is drawn as by
    `mark_goal`. Raises ValueError if no episode has ended, or as `saved_figure` does.
    """
    check_name(path)
    if not len(points(metrics, "return_mean", over)[0]) and not len(points(metrics, "return_mean_20", over)[0]):
        raise ValueError(f"{title}: no data to plot: no episode has ended yet")
    with saved_figure(path, 8, 5) as (matplotlib, figure):
        axes = figure.subplots()
        axes.set(title=title, ylabel="mean return (reward per episode)")
        show_return(matplotlib, axes, metrics, goal, over, evaluations)
        show_legend(axes)


def show_return(
    matplotlib: Any, axes: Any, metrics: Rows, goal: float | None, over: Over, evaluations: Rows = ()
) -> tuple[list[Series], Unit]:
    """Draw the returns of one run, and those of its evaluations during training, on `axes`.

    Return the curves, with x in steps or seconds, and the unit of the axis.
    """
    raw, smooth = points(metrics, "return_mean", over), points(metrics, "return_mean_20", over)
    unit = axis(matplotlib, axes, over, max(part[0][-1] for part in (raw, smooth) if len(part[0])))
    series = []
    for (x, y), color, width, name in ((raw, SKY, 0.8, "iteration"), (smooth, BLUE, 2.2, "last 20 episodes")):
        if len(x):
            marker = "o" if len(x) == 1 else None
            axes.plot(x / unit.divisor, y, color=color, linewidth=width, marker=marker, label=name)
            series.append(Series(name, color, x, y))
    for column, marker, name in (
        ("return_mean", "o", "evaluation"),
        ("sampled_return_mean", "s", "evaluation, sampled"),
    ):
        x, y = points(evaluations, column, over)
        if len(x):
            fill = "none" if column.startswith("sampled") else GREEN
            axes.plot(
                x / unit.divisor,
                y,
                color=GREEN,
                linewidth=1,
                marker=marker,
                markersize=4,
                markerfacecolor=fill,
                label=name,
            )
            series.append(Series(name, GREEN, x, y))
    if goal is not None:
        mark_goal(axes, goal, VERMILION)
    return series, unit


def show_legend(axes: Any) -> None:
    """Draw the legend of `axes` below them: on them it may cover a curve."""
    columns = int(axes.figure.get_figwidth() // _COLUMN)
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)


def mark_goal(axes: Any, goal: float, color: str) -> None:
    """Draw a horizontal line at `goal`. If it is farther from the curves than they are high, name it at the edge of the axes instead.

    Call it after the curves are drawn: a line that is far off would leave them no height.
    """
    low, high = axes.get_ylim()
    if 2 * low - high <= goal <= 2 * high - low:
        axes.axhline(goal, color=color, linewidth=1.5, linestyle="--", label=f"goal {goal:g}")
        return
    above = goal > high
    axes.annotate(
        f"goal {goal:g} {'↑' if above else '↓'}",
        (1, 1 if above else 0),
        (-2, 0),
        "axes fraction",
        "offset points",
        ha="right",
        va="center",
        color=color,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )
