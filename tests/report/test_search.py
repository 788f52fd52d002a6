"""Tests of the figures of a search."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep.report import search
from lockstep.sweep.history import History, PastTrial


def test_choices_are_in_the_order_of_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ticks: list[str] = []
    saved_figure = search.saved_figure

    @contextmanager
    def watched(*arguments: Any) -> Iterator[Any]:
        with saved_figure(*arguments) as (matplotlib, figure):
            yield matplotlib, figure
            ticks.extend(label.get_text() for label in figure.axes[0].get_xticklabels())

    monkeypatch.setattr(search, "saved_figure", watched)
    values = ["16", "none", "4", "8", "4"]
    trials = [PastTrial(number, {"a.b": value}, "complete", float(number)) for number, value in enumerate(values)]
    search.draw_values(History(trials, {}, frozenset()), "a.b", tmp_path / "figure.png")
    assert ticks == ["4", "8", "16", "none"]
