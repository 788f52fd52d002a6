"""Speed over numbers of ranks: speed-up, efficiency, where the time goes, and the time to a return."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.report.style import COLOURS, GREY, picture
from lockstep.report.timing import PHASE_COLOURS, PHASE_NAMES, PHASES

__all__ = ["draw_scaling"]

Row = Mapping[str, Any]
_KINDS = {"strong": (COLOURS[0], "o"), "weak": (COLOURS[1], "s")}
_ROLES = {"rank0": "rank 0", "players": "players"}


def draw_scaling(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draws a scaling benchmark, some 1000 by 900 pixels.

    Args:
        rows: One per kind and number of ranks, as in the benchmark's summary.json. Of a `seconds_to_return_median` that is None nothing is
            drawn; where all are, there is no panel of it.
        title: Printed above.
        path: A file that ends in .png or .svg. It is written aside and renamed.

    Raises ValueError, in one line, for what `picture` does.
    """
    bars = [(row, role) for row in rows for role in _ROLES if row[f"{role}_iter_mean_ms"] is not None]
    solved = any(row["seconds_to_return_median"] is not None for row in rows)
    below = 1.6 + 0.42 * len(bars)
    heights = [3.8, below]
    with picture(path, 12 if solved else 10, sum(heights) + 0.6) as (matplotlib, figure):
        grid = figure.add_gridspec(2, 3 if solved else 2, height_ratios=heights)
        panels = [figure.add_subplot(grid[0, column]) for column in range(3 if solved else 2)]
        _show_speedup(panels[0], rows)
        _show_efficiency(matplotlib, panels[1], rows)
        if solved:
            _show_time_to_return(panels[2], rows)
        for axes in panels:
            _ranks_below(matplotlib, axes, rows)
        _show_split(matplotlib, figure.add_subplot(grid[1, :]), bars)
        figure.suptitle(title, fontsize=13)


def _show_speedup(axes: Any, rows: Sequence[Row]) -> None:
    base = rows[0]["speedup_base_ranks"]
    ranks = sorted({row["ranks"] for row in rows})
    axes.plot(ranks, [count / base for count in ranks], color=GREY, linestyle="--", linewidth=1.2, label="ideal")
    _show(axes, rows, "speedup")
    axes.set(ylabel=f"speed-up (to {base} rank{'s' * (base > 1)})", ylim=(0, None))
    axes.legend(frameon=False, loc="upper left")


def _show_efficiency(matplotlib: Any, axes: Any, rows: Sequence[Row]) -> None:
    axes.axhline(1, color=GREY, linestyle="--", linewidth=1.2)
    _show(axes, rows, "efficiency")
    axes.set(ylabel="efficiency (speed-up per rank)", ylim=(0, None))
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))


def _show_time_to_return(axes: Any, rows: Sequence[Row]) -> None:
    _show(axes, [row for row in rows if row["seconds_to_return_median"] is not None], "seconds_to_return")
    axes.set(ylabel=f"time to a return of {rows[0]['solved_return']:g} (s)", ylim=(0, None))


def _show(axes: Any, rows: Sequence[Row], name: str) -> None:
    """Medians with their ranges. A hollow mark has more ranks than cores."""
    for kind, (colour, mark) in _KINDS.items():
        own = [row for row in rows if row["kind"] == kind]
        ranks, middle = [row["ranks"] for row in own], [row[f"{name}_median"] for row in own]
        if not own:
            continue
        axes.plot(ranks, middle, color=colour, linewidth=2, label=kind)
        for row in own:
            below = row[f"{name}_median"] - row[f"{name}_least"]
            # no end where a repeat never got there
            above = (row[f"{name}_most"] or row[f"{name}_median"]) - row[f"{name}_median"]
            fill = "white" if row["more_ranks_than_cores"] else colour
            mark_style = {"marker": mark, "markersize": 8, "markerfacecolor": fill, "markeredgewidth": 1.8}
            axes.errorbar(
                row["ranks"], row[f"{name}_median"], [[below], [above]], color=colour, capsize=4, **mark_style
            )


def _ranks_below(matplotlib: Any, axes: Any, rows: Sequence[Row]) -> None:
    ranks = sorted({row["ranks"] for row in rows})
    if ranks[-1] > 8:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator(ranks))
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda count, place: f"{count:g}"))
    crowded = any(row["more_ranks_than_cores"] for row in rows)
    axes.set_xlabel("ranks" + (" (hollow: more than cores)" if crowded else ""))
    axes.margins(x=0.08)
    axes.tick_params(color=GREY)


def _show_split(matplotlib: Any, axes: Any, bars: Sequence[tuple[Row, str]]) -> None:
    """A bar per role, as shares of its iteration; beside it how long that is."""
    for place, (row, role) in enumerate(bars):
        left = 0.0
        for phase in PHASES:
            share = row[f"{role}_{phase}_share"]
            name = PHASE_NAMES.get(phase, phase) if place == 0 else None
            axes.barh(place, share, left=left, color=PHASE_COLOURS[phase], height=0.65, label=name)
            left += share
        axes.text(1.01, place, f"{row[f'{role}_iter_mean_ms']:,.3g} ms", va="center")
    several = any(role == "players" for _, role in bars)
    axes.set(
        yticks=range(len(bars)),
        yticklabels=[
            f"{row['kind']}, {row['ranks']} rank{'s' * (row['ranks'] > 1)}" + (f", {_ROLES[role]}" if several else "")
            for row, role in bars
        ],
        xlabel="share of an iteration, and its mean time",
        xlim=(0, 1.1),
    )
    axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    axes.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=len(PHASES), columnspacing=1.2)
