"""The learning curve of a run as a picture."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["draw_curve"]

# Okabe and Ito, "Color Universal Design" (2008): told apart with any colour vision.
_BLUE, _SKY, _VERMILION, _GREY = "#0072B2", "#56B4E9", "#D55E00", "#595959"
_STYLE: dict[str, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 12,
    "grid.color": "#DDDDDD",
    "svg.fonttype": "none",
    "svg.hashsalt": "lockstep",
}


def draw_curve(metrics: Sequence[Mapping[str, Any]], title: str, path: Path, goal: float | None = None) -> None:
    """Draws the mean return over environment steps, 800 by 500 pixels.

    Args:
        metrics: Rows of metrics.jsonl: `env_steps`, `return_mean` (of the iteration), `return_mean_20` (last 20 episodes).
            Rows from before the first episode's end have no return and are left out.
        title: Printed above.
        path: A file that ends in .png or .svg. It is written aside and renamed.
        goal: A return to reach, drawn as a line.

    Raises:
        ValueError: In one line: another ending, no episode that has ended, or no matplotlib.
    """
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"{path} is no name for a curve: it must end in .png or .svg")
    smooth, raw = _points(metrics, "return_mean_20"), _points(metrics, "return_mean")
    if not smooth:
        raise ValueError(f"{title}: there is nothing to draw yet, because no episode has ended")
    matplotlib = _matplotlib()
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=(8, 5), dpi=100, layout="constrained")
        axes = figure.subplots()
        dots = "o" if len(smooth) == 1 else None
        axes.plot(*zip(*raw, strict=True), color=_SKY, linewidth=0.8, marker=dots, label="iteration") if raw else None
        axes.plot(*zip(*smooth, strict=True), color=_BLUE, linewidth=2.2, marker=dots, label="last 20 episodes")
        if goal is not None:
            axes.axhline(goal, color=_VERMILION, linewidth=1.5, linestyle="--", label=f"goal {goal:g}")
        axes.set(title=title, xlabel="environment steps", ylabel="mean return (reward per episode)")
        axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
        axes.margins(x=0.01)
        axes.tick_params(color=_GREY)
        axes.legend(frameon=False, loc="best")
        _save(figure, path)


def _points(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    rows = ((row["env_steps"], row.get(name)) for row in metrics)
    return [(float(steps), float(value)) for steps, value in rows if value is not None and math.isfinite(value)]


def _save(figure: Any, path: Path) -> None:
    kind = path.suffix[1:]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        # no date, so that the same run gives the same file
        figure.savefig(partial, format=kind, metadata={"Date": None} if kind == "svg" else None)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _matplotlib() -> ModuleType:
    try:
        import matplotlib.figure
        import matplotlib.ticker
    except ImportError:
        raise ValueError("a curve needs matplotlib; pip install 'lockstep-rl[report]'") from None
    return matplotlib
