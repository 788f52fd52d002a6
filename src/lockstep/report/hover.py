"""Values of the curves of a figure at the pointer, as an overlay of its SVG. Style sheets show them; there is no script."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.report.style import Unit

__all__ = ["PLOT_AREA", "Readouts", "Series", "overlay", "readouts"]

PLOT_AREA = "plot-area"
"""Id of the rectangle of the axes in the SVG."""
_MAX_POINTS = 60
"""Largest number of positions at which values are shown."""
_LINE, _CHARACTER, _MARGIN = 15.0, 6.3, 7.0
"""Height of a line, mean width of a character and margin of the box, in units of the SVG; `.tip text` of the page sets the font size."""
_LONGEST = 44
"""Largest number of characters of a label."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """A curve of N points, `[N]` each, with its label and its color, such as `#0072B2`."""

    label: str
    color: str
    x: Array
    y: Array


@dataclass(frozen=True)
class Readouts:
    """Values that are shown when the pointer is near one of K positions on the horizontal axis."""

    positions: Sequence[float]
    """Position of each x: 0 is the left end of the axis and 1 the right end."""
    headings: Sequence[str]
    rows: Sequence[Sequence[tuple[str, str]]]
    """Color and text of the lines below each heading."""


def readouts(axes: Any, series: Sequence[Series], unit: Unit) -> Readouts:
    """Return the values of all series at up to 60 positions of the x axis, and name the rectangle of `axes` for `overlay`.

    `unit` is that of the axis; x of the series are in steps or seconds. The value of a series at an x is its last one at or before it. Call
    it after everything is drawn, because the range of the axis may change until then.
    """
    axes.patch.set_gid(PLOT_AREA)
    x = np.unique(np.concatenate([one.x for one in series])) if series else np.zeros(0)
    if len(x) > _MAX_POINTS:
        x = x[np.linspace(0, len(x) - 1, _MAX_POINTS).round().astype(int)]
    low, high = axes.get_xlim()
    rows = [
        [(one.color, _text(one, position)) for one in series if len(one.x) and one.x[0] <= position] for position in x
    ]
    headings = [
        f"{position:,.0f} steps" if unit.name == "steps" else f"{position:,.4g} {unit.name}"
        for position in x / unit.divisor
    ]
    return Readouts([(position - low) / (high - low) for position in (x / unit.divisor).tolist()], headings, rows)


def _text(series: Series, position: float) -> str:
    value = series.y[np.searchsorted(series.x, position, side="right") - 1]
    label = series.label if len(series.label) <= _LONGEST else f"{series.label[: _LONGEST - 1]}…"
    return f"{label} {value:,.5g}" if label else f"{value:,.5g}"


def overlay(svg: str, values: Readouts) -> str:
    """Return the elements that show the values over `svg`, the text of a figure; empty without values."""
    area = re.search(rf'id="[^"]*{PLOT_AREA}">\s*<path d="([^"]*)"', svg)
    if area is None or not values.positions:
        return ""
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", area[1])]
    left, right, top, bottom = min(numbers[::2]), max(numbers[::2]), min(numbers[1::2]), max(numbers[1::2])
    x = [left + position * (right - left) for position in values.positions]
    edges = [left, *((a + b) / 2 for a, b in pairwise(x)), right]
    tips = (
        _tip((begin, end, position), (left, right, top, bottom), heading, rows)
        for begin, end, position, heading, rows in zip(edges, edges[1:], x, values.headings, values.rows, strict=False)
    )
    return "".join(tips)


def _tip(
    column: tuple[float, float, float],
    area: tuple[float, float, float, float],
    heading: str,
    rows: Sequence[tuple[str, str]],
) -> str:
    """Return the readout of one x: the column that reacts to the pointer, a line, and a box with the values on the side with more room."""
    (begin, end, position), (left, right, top, bottom) = column, area
    width = _CHARACTER * max(len(heading), *(len(text) + 3 for _, text in rows), 1) + 2 * _MARGIN
    x = position + _MARGIN if position < (left + right) / 2 else position - _MARGIN - width
    lines = [f'<tspan x="{x + _MARGIN:.1f}" dy="{_LINE}">{escape(heading)}</tspan>']
    lines += [
        f'<tspan x="{x + _MARGIN:.1f}" dy="{_LINE}"><tspan style="fill: {color}">■</tspan> {escape(text)}</tspan>'
        for color, text in rows
    ]
    height = _LINE * len(lines) + _MARGIN
    return (
        f'<g class="tip"><rect class="column" x="{begin:.1f}" y="{top:.1f}" width="{end - begin:.1f}" height="{bottom - top:.1f}"/>'
        f'<path d="M{position:.1f} {top:.1f}V{bottom:.1f}"/><rect class="box" x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3"/>'
        f'<text y="{top:.1f}">{"".join(lines)}</text></g>'
    )
