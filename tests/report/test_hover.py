import re

import numpy as np

from lockstep.report.hover import Readouts, overlay

SVG = '<svg><g id="plot-area">\n<path d="M 50 200 \nL 350 200 \nL 350 20 \nL 50 20 \nz"/></g></svg>'


def test_boxes_lie_on_the_side_with_more_room_and_columns_cover_the_axes() -> None:
    values = Readouts([0.1, 0.9], ["10 steps", "90 steps"], [[("#0072B2", "<a> 1")], []])
    text = overlay(SVG, values)
    columns = [
        (float(x), float(width)) for x, width in re.findall(r'"column" x="([\d.]+)" y="20.0" width="([\d.]+)"', text)
    ]
    assert columns == [(50, 150), (200, 150)]
    boxes = [float(x) for x in re.findall(r'"box" x="([\d.]+)"', text)]
    assert boxes[0] > 80
    assert 200 < boxes[1] < 320
    assert "&lt;a&gt; 1" in text
    assert '<tspan style="fill: #0072B2">■</tspan>' in text


def test_without_values_or_axes_nothing_is_added() -> None:
    assert overlay(SVG, Readouts([], [], [])) == ""
    assert overlay("<svg></svg>", Readouts([0.5], ["1 steps"], [[]])) == ""


def test_readouts_show_the_last_value_of_each_series() -> None:
    import pytest

    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from lockstep.report.hover import Series, readouts
    from lockstep.report.style import Unit

    axes = Figure().subplots()
    axes.set_xlim(0, 10)
    first = Series("a", "red", np.array([60.0, 120.0, 300.0]), np.array([1.0, 2.0, 3.0]))
    second = Series("b", "blue", np.array([120.0]), np.array([7.0]))
    values = readouts(axes, [first, second], Unit(60.0, "min"))
    assert values.headings == ["1 min", "2 min", "5 min"]
    assert values.positions == [0.1, 0.2, 0.5]
    assert values.rows == [[("red", "a 1")], [("red", "a 2"), ("blue", "b 7")], [("red", "a 3"), ("blue", "b 7")]]
