"""Part of a report about a search: the history of its trials, and what each searched field contributes."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.report.html import NARROW, WIDE, PageFigure, flags_apart
from lockstep.report.inline import inline_figure
from lockstep.report.style import BLUE, GRAY, VERMILION, saved_figure
from lockstep.sweep.history import History

__all__ = ["draw_history", "draw_values", "search_content"]


def search_content(history: History, commands: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what the page shows of a search. `commands` has the command that repeats each run, by name of the run."""
    best = history.best
    figures = []
    if best is not None:
        draw = partial(draw_history, history)
        figures.append(
            PageFigure(
                "Return of each trial, and the best so far",
                f"Return of {len(history.trials)} trials; the best is trial {best.number}",
                inline_figure(partial(draw, size=WIDE), "history-wide"),
                inline_figure(partial(draw, size=NARROW), "history"),
            )
        )
        figures += [
            PageFigure(
                f"Return over {field}",
                f"Return of the trials over the value of {field}",
                inline_figure(partial(draw_values, history, field), f"values-{number}"),
            )
            for number, field in enumerate(best.values)
        ]
    trials = sorted(history.trials, key=lambda trial: -np.inf if trial.score is None else trial.score, reverse=True)
    name = next((name for name in commands if best and name.startswith(f"trial-{best.number:04d}")), None)
    return {
        "trials": trials,
        "fields": list(dict.fromkeys(field for trial in trials for field in trial.values)),
        "best": best,
        "run": name,
        "command": flags_apart(commands.get(name) if name else None),
        "importances": history.importances,
        "figures": figures,
    }


def draw_history(history: History, path: Path, size: tuple[float, float] = NARROW) -> None:
    """Draw the score of each trial over its number, and the highest so far. Raises ValueError as `saved_figure` does."""
    with saved_figure(path, *size) as (matplotlib, figure):
        axes = figure.subplots()
        _show_trials(axes, history, {trial.number: trial.number for trial in history.trials})
        complete = [trial for trial in history.trials if trial.state == "complete" and trial.score is not None]
        best = np.maximum.accumulate([trial.score or 0.0 for trial in complete])
        axes.step([trial.number for trial in complete], best, where="post", color=VERMILION, label="best so far")
        axes.set(xlabel="trial", ylabel="return")
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        axes.legend(frameon=False, loc="best")


def _in_order(choice: str) -> tuple[float, str]:
    """Return a key that sorts numbers by value, before all other choices."""
    try:
        return float(choice), choice
    except ValueError:
        return np.inf, choice


def draw_values(history: History, field: str, path: Path) -> None:
    """Draw the score of each trial over its value of `field`. Raises ValueError as `saved_figure` does."""
    with saved_figure(path, *NARROW) as (_, figure):
        axes = figure.subplots()
        values = {trial.number: trial.values.get(field) for trial in history.trials if field in trial.values}
        if any(isinstance(value, str) for value in values.values()):
            choices = sorted({str(value) for value in values.values()}, key=_in_order)
            axes.set_xticks(range(len(choices)), choices)
            axes.set_xlim(-0.5, len(choices) - 0.5)
            values = {number: choices.index(str(value)) for number, value in values.items()}
        elif field in history.logarithmic:
            axes.set_xscale("log")
        _show_trials(axes, history, values)
        axes.set(xlabel=field, ylabel="return")


def _show_trials(axes: Any, history: History, places: Mapping[int, Any]) -> None:
    for state, marker, color in (("complete", "o", BLUE), ("pruned", "x", GRAY)):
        shown = [
            (places[trial.number], trial.score)
            for trial in history.trials
            if trial.state == state and trial.score is not None and trial.number in places
        ]
        if shown:
            axes.plot(*zip(*shown, strict=True), linestyle="none", marker=marker, color=color, label=state)
