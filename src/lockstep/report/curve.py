"""The learning curve of a run as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.report.bands import points
from lockstep.report.style import BLUE, SKY, VERMILION, Over, axis, check_name, picture

__all__ = ["draw_curve", "show_return"]


def draw_curve(
    metrics: Sequence[Mapping[str, Any]], title: str, path: Path, goal: float | None = None, over: Over = "steps"
) -> None:
    """Draws the mean return over environment steps or seconds, 800 by 500 pixels.

    Args:
        metrics: Rows of metrics.jsonl: `env_steps`, `seconds`, `return_mean` (of the iteration), `return_mean_20` (last 20 episodes).
            Rows from before the first episode's end have no return and are left out.
        title: Printed above.
        path: A file that ends in .png or .svg. It is written aside and renamed.
        goal: A return to reach, drawn as a line.
        over: What is drawn to the right.

    Raises:
        ValueError: In one line: another ending, no episode that has ended, no matplotlib, or a file that can't be written.
    """
    check_name(path)
    if not len(points(metrics, "return_mean", over)[0]) and not len(points(metrics, "return_mean_20", over)[0]):
        raise ValueError(f"{title}: there is nothing to draw yet, because no episode has ended")
    with picture(path, 8, 5) as (matplotlib, figure):
        axes = figure.subplots()
        axes.set(title=title, ylabel="mean return (reward per episode)")
        show_return(matplotlib, axes, metrics, goal, over)


def show_return(
    matplotlib: Any, axes: Any, metrics: Sequence[Mapping[str, Any]], goal: float | None, over: Over
) -> None:
    """Draws one run's returns and a legend on `axes`."""
    raw, smooth = points(metrics, "return_mean", over), points(metrics, "return_mean_20", over)
    divisor = axis(matplotlib, axes, over, max(part[0][-1] for part in (raw, smooth) if len(part[0])))
    for (right, up), colour, width, name in ((raw, SKY, 0.8, "iteration"), (smooth, BLUE, 2.2, "last 20 episodes")):
        if len(right):
            dots = "o" if len(right) == 1 else None
            axes.plot(right / divisor, up, color=colour, linewidth=width, marker=dots, label=name)
    if goal is not None:
        axes.axhline(goal, color=VERMILION, linewidth=1.5, linestyle="--", label=f"goal {goal:g}")
    axes.legend(frameon=False, loc="best")
