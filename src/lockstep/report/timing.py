"""Figures of the time per iteration, by phase and role."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.phases import PHASES
from lockstep.report.bands import points
from lockstep.report.experiments import RecordedRun
from lockstep.report.style import COLORS, Over, axis, saved_figure

__all__ = ["PHASE_COLORS", "PHASE_NAMES", "draw_time_per_iteration", "draw_timing", "mean_seconds", "plain_number"]

PHASE_NAMES = {"wait": "wait (idle)"}
PHASE_COLORS = dict(zip(PHASES, (COLORS[0], COLORS[3], COLORS[2], "#BBBBBB", COLORS[4], COLORS[5]), strict=True))
_MAX_POINTS = 100
"""Largest number of points over the course of a run. Each is the mean over an equal number of iterations."""
_PLAYERS = "player_t"
_TICKS = "{x:,.10g}"
"""Format of tick labels: thousands separators, and ten digits, which hide the rounding errors of tick positions."""

Array = NDArray[np.float64]


def mean_seconds(metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the mean seconds per iteration by role and phase. The role `players` exists if some ranks only play; no role without metrics."""
    return {
        role: {phase: _mean(points(metrics, f"{prefix}_{phase}")[1]) for phase in PHASES}
        for role, prefix in _roles(metrics).items()
    }


def draw_timing(runs: Sequence[RecordedRun], path: Path, over: Over) -> None:
    """Draw one bar per run and role, stacked by phase. For a single run, also draw the phases over steps or seconds.

    Raises ValueError if a run has no metrics yet, or as `saved_figure` does. The message is one line.
    """
    bars = []
    for run in runs:
        means = mean_seconds(run.metrics)
        if not means:
            raise ValueError(f"{run.name}: no data to plot: the run has no time metrics yet")
        bars += [(f"{run.name}\n{role}" if len(runs) > 1 else role, phases) for role, phases in means.items()]
    roles = _roles(runs[0].metrics) if len(runs) == 1 else {}
    top = 1.6 + 0.55 * len(bars)
    with saved_figure(path, 10, top + 3 * len(roles)) as (matplotlib, figure):
        ratios = {"height_ratios": [top - 0.6, *([3] * len(roles))]}
        panels = figure.subplots(1 + len(roles), 1, gridspec_kw=ratios, squeeze=False)[:, 0]
        _show_bars(panels[0], bars)
        for axes, (role, prefix) in zip(panels[1:], roles.items(), strict=True):
            _show_course(matplotlib, axes, runs[0], role, prefix, over, last=axes is panels[-1])
        if len(runs) == 1:
            figure.suptitle(runs[0].name, fontsize=13)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(PHASES), frameon=False, columnspacing=1.2)


def draw_time_per_iteration(run: RecordedRun, role: str, path: Path, over: Over) -> None:
    """Draw the phases of one role of `mean_seconds` over steps or seconds, 480 by 320 pixels. Raises ValueError as `saved_figure` does."""
    with saved_figure(path, 4.8, 3.2) as (matplotlib, figure):
        _show_course(matplotlib, figure.subplots(), run, role, _roles(run.metrics)[role], over, last=True)


def plain_number(value: float) -> str:
    """Format a duration with three significant digits, at most three decimals and no exponent: 1,960, 40.6, 0.002."""
    return f"{value:,.0f}" if value >= 100 else f"{round(value, 3):.3g}"


def _roles(metrics: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the roles of the ranks of a run, and the prefix of the metric names of each. Return no role without metrics."""
    if not len(points(metrics, "t_iter")[0]):
        return {}
    if len(points(metrics, f"{_PLAYERS}_iter")[0]):
        return {"rank 0 (trains)": "t", "players (mean)": _PLAYERS}
    return {"rank 0 (plays and trains)": "t"}


def _mean(seconds: Array) -> float:
    return float(seconds.mean()) if len(seconds) else 0.0


def _show_bars(axes: Any, bars: Sequence[tuple[str, Mapping[str, float]]]) -> None:
    largest = max(sum(phases.values()) for _, phases in bars)
    factor, unit = _unit(largest)
    for row, (_, phases) in enumerate(bars):
        left = 0.0
        for phase, seconds in phases.items():
            name = PHASE_NAMES.get(phase, phase) if row == 0 else None
            axes.barh(row, seconds * factor, left=left, color=PHASE_COLORS[phase], height=0.6, label=name)
            left += seconds * factor
        axes.text(left + 0.01 * largest * factor, row, f"{plain_number(left)} {unit}", va="center")
    axes.set(
        yticks=range(len(bars)), yticklabels=[name for name, _ in bars], xlabel=f"mean time per iteration ({unit})"
    )
    axes.set_xlim(0, 1.13 * largest * factor)
    axes.xaxis.set_major_formatter(_TICKS)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)


def _show_course(
    matplotlib: ModuleType, axes: Any, run: RecordedRun, role: str, prefix: str, over: Over, last: bool
) -> None:
    x, _ = points(run.metrics, f"{prefix}_iter", over)
    parts = [part for part in np.array_split(np.arange(len(x)), min(_MAX_POINTS, len(x))) if len(part)]
    rows = [points(run.metrics, f"{prefix}_{phase}", over)[1] for phase in PHASES]
    table = np.array([[row[part].mean() if len(row) == len(x) else 0.0 for part in parts] for row in rows])
    factor, unit = _unit(float(np.percentile(table.sum(0), 95)))
    divisor = axis(matplotlib, axes, over, float(x[-1]), label=last).divisor
    ends = np.array([x[part[-1]] for part in parts]) / divisor
    if len(ends) == 1:
        ends, table = ends + np.array([-0.5, 0.5]), np.repeat(table, 2, axis=1)
    axes.stackplot(ends, table * factor, colors=[PHASE_COLORS[phase] for phase in PHASES], linewidth=0)
    largest, typical = float(table.sum(0).max()), float(np.percentile(table.sum(0), 95))
    # cut off outliers: next to a single long iteration, such as one with a checkpoint, all others would be invisible
    axes.set_ylim(0, 1.1 * factor * (largest if largest < 3 * typical else 1.5 * typical) or 1.0)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_formatter(_TICKS)
    axes.set_ylabel(f"{role.partition(' (')[0]}\n({unit} per iteration)")
    axes.margins(x=0)


def _unit(seconds: float) -> tuple[float, str]:
    return (1.0, "s") if seconds >= 1 else (1000.0, "ms")
