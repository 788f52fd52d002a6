"""Figure of a scaling benchmark: speed-up, efficiency, time per phase and time to a target return, over the number of ranks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.messages import counted
from lockstep.phases import PHASES
from lockstep.report.style import COLORS, GRAY, saved_figure
from lockstep.report.timing import PHASE_COLORS, PHASE_NAMES

__all__ = ["draw_scaling"]

Row = Mapping[str, Any]
_KINDS = {"strong": (COLORS[0], "o"), "weak": (COLORS[1], "s")}
_ROLES = {"rank0": "rank 0", "players": "players"}


def draw_scaling(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw a scaling benchmark, about 1000 by 900 pixels.

    `rows` has one row per kind and number of ranks, as in summary.json of the benchmark. Rows whose `seconds_to_return_median` is None are
    omitted from the panel of the time to the target return; if it is None in all rows, that panel is omitted. Raises ValueError as
    `saved_figure` does.
    """
    bars = [(row, role) for row in rows for role in _ROLES if row[f"{role}_iter_mean_ms"] is not None]
    solved = any(row["seconds_to_return_median"] is not None for row in rows)
    heights = [3.8, 1.6 + 0.42 * len(bars)]
    with saved_figure(path, 12 if solved else 10, sum(heights) + 0.6) as (matplotlib, figure):
        grid = figure.add_gridspec(2, 3 if solved else 2, height_ratios=heights)
        panels = [figure.add_subplot(grid[0, column]) for column in range(3 if solved else 2)]
        _show_speedup(panels[0], rows)
        _show_efficiency(matplotlib, panels[1], rows)
        if solved:
            _show_time_to_return(panels[2], rows)
        for axes in panels:
            _label_ranks(matplotlib, axes, rows)
        _show_phases(matplotlib, figure.add_subplot(grid[1, :]), bars)
        figure.suptitle(title, fontsize=13)


def _show_speedup(axes: Any, rows: Sequence[Row]) -> None:
    base = rows[0]["speedup_base_ranks"]
    ranks = sorted({row["ranks"] for row in rows})
    axes.plot(ranks, [count / base for count in ranks], color=GRAY, linestyle="--", linewidth=1.2, label="ideal")
    _show(axes, rows, "speedup")
    axes.set(ylabel=f"speed-up (to {counted(base, 'rank')})", ylim=(0, None))
    axes.legend(frameon=False, loc="upper left")


def _show_efficiency(matplotlib: Any, axes: Any, rows: Sequence[Row]) -> None:
    axes.axhline(1, color=GRAY, linestyle="--", linewidth=1.2)
    _show(axes, rows, "efficiency")
    axes.set(ylabel="efficiency (speed-up per rank)", ylim=(0, None))
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))


def _show_time_to_return(axes: Any, rows: Sequence[Row]) -> None:
    _show(axes, [row for row in rows if row["seconds_to_return_median"] is not None], "seconds_to_return")
    axes.set(ylabel=f"time to a return of {rows[0]['solved_return']:g} (s)", ylim=(0, None))


def _show(axes: Any, rows: Sequence[Row], name: str) -> None:
    """Draw medians with their ranges. A marker is hollow if there are more ranks than cores."""
    for kind, (color, marker) in _KINDS.items():
        kind_rows = [row for row in rows if row["kind"] == kind]
        ranks, medians = [row["ranks"] for row in kind_rows], [row[f"{name}_median"] for row in kind_rows]
        if not kind_rows:
            continue
        axes.plot(ranks, medians, color=color, linewidth=2, label=kind)
        for row in kind_rows:
            below = row[f"{name}_median"] - row[f"{name}_least"]
            # the maximum is None if a repeat did not reach the target return
            above = (row[f"{name}_most"] or row[f"{name}_median"]) - row[f"{name}_median"]
            fill = "white" if row["more_ranks_than_cores"] else color
            style = {"marker": marker, "markersize": 8, "markerfacecolor": fill, "markeredgewidth": 1.8}
            axes.errorbar(row["ranks"], row[f"{name}_median"], [[below], [above]], color=color, capsize=4, **style)


def _label_ranks(matplotlib: Any, axes: Any, rows: Sequence[Row]) -> None:
    ranks = sorted({row["ranks"] for row in rows})
    if ranks[-1] > 8:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator(ranks))
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda count, position: f"{count:g}"))
    oversubscribed = any(row["more_ranks_than_cores"] for row in rows)
    axes.set_xlabel("ranks" + (" (hollow: more than cores)" if oversubscribed else ""))
    axes.margins(x=0.08)
    axes.tick_params(color=GRAY)


def _show_phases(matplotlib: Any, axes: Any, bars: Sequence[tuple[Row, str]]) -> None:
    """Draw one bar per role with the share of each phase in an iteration, and print the mean time of the iteration beside it."""
    for position, (row, role) in enumerate(bars):
        left = 0.0
        for phase in PHASES:
            share = row[f"{role}_{phase}_share"]
            name = PHASE_NAMES.get(phase, phase) if position == 0 else None
            axes.barh(position, share, left=left, color=PHASE_COLORS[phase], height=0.65, label=name)
            left += share
        axes.text(1.01, position, f"{row[f'{role}_iter_mean_ms']:,.3g} ms", va="center")
    has_players = any(role == "players" for _, role in bars)
    axes.set(
        yticks=range(len(bars)),
        yticklabels=[
            f"{row['kind']}, {counted(row['ranks'], 'rank')}" + (f", {_ROLES[role]}" if has_players else "")
            for row, role in bars
        ],
        xlabel="share of the iteration, and mean time of an iteration",
        xlim=(0, 1.1),
    )
    axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    axes.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=len(PHASES), columnspacing=1.2)
