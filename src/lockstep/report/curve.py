"""Figure of the learning curve of one run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.report.bands import points
from lockstep.report.style import BLUE, GREEN, SKY, VERMILION, Over, axis, check_name, saved_figure

Rows = Sequence[Mapping[str, Any]]

__all__ = ["draw_curve", "show_return"]


def draw_curve(
    metrics: Rows, title: str, path: Path, goal: float | None = None, over: Over = "steps", evaluations: Rows = ()
) -> None:
    """Draw the mean return over environment steps or seconds, 800 by 500 pixels.

    `metrics` are rows of metrics.jsonl, and `evaluations` of evaluations.jsonl, whose mean returns are drawn too. `goal` is drawn as a
    horizontal line. Raises ValueError if no episode has ended, or as `saved_figure` does.
    """
    check_name(path)
    if not len(points(metrics, "return_mean", over)[0]) and not len(points(metrics, "return_mean_20", over)[0]):
        raise ValueError(f"{title}: no data to plot: no episode has ended yet")
    with saved_figure(path, 8, 5) as (matplotlib, figure):
        axes = figure.subplots()
        axes.set(title=title, ylabel="mean return (reward per episode)")
        show_return(matplotlib, axes, metrics, goal, over, evaluations)


def show_return(
    matplotlib: Any, axes: Any, metrics: Rows, goal: float | None, over: Over, evaluations: Rows = ()
) -> None:
    """Draw the returns of one run, those of its evaluations during training, and a legend on `axes`."""
    raw, smooth = points(metrics, "return_mean", over), points(metrics, "return_mean_20", over)
    divisor = axis(matplotlib, axes, over, max(part[0][-1] for part in (raw, smooth) if len(part[0])))
    for (x, y), color, width, name in ((raw, SKY, 0.8, "iteration"), (smooth, BLUE, 2.2, "last 20 episodes")):
        if len(x):
            marker = "o" if len(x) == 1 else None
            axes.plot(x / divisor, y, color=color, linewidth=width, marker=marker, label=name)
    for name, marker, label in (
        ("return_mean", "o", "evaluation"),
        ("sampled_return_mean", "s", "evaluation, sampled"),
    ):
        x, y = points(evaluations, name, over)
        if len(x):
            fill = "none" if name.startswith("sampled") else GREEN
            axes.plot(
                x / divisor, y, color=GREEN, linewidth=1, marker=marker, markersize=4, markerfacecolor=fill, label=label
            )
    if goal is not None:
        axes.axhline(goal, color=VERMILION, linewidth=1.5, linestyle="--", label=f"goal {goal:g}")
    axes.legend(frameon=False, loc="best")
