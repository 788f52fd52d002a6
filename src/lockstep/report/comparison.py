"""HTML report of several runs, or of the runs of a sweep: curves, differences of their configs, and results over seeds."""

import json
import math
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

import numpy as np

from lockstep.report.curves import METRICS, band_text, colors_of, curve_of, draw_metric
from lockstep.report.experiments import Experiment, RecordedRun, check_environment, group_by_experiment
from lockstep.report.html import NARROW, WIDE, PageFigure, short, write_page
from lockstep.report.inline import COLOR_NAMES, inline_figure
from lockstep.report.intervals import Estimate, estimate_over_seeds, interquartile_mean
from lockstep.report.search import search_content
from lockstep.report.summary import RunSummary, summarize
from lockstep.run.folder import RunFolder
from lockstep.sweep.history import read_history
from lockstep.telemetry.listing import State, state_of

__all__ = ["write_comparison"]


@dataclass(frozen=True)
class _Member:
    """One run of the comparison."""

    name: str
    """Name that no other run of the comparison has."""
    folder: RunFolder
    summary: RunSummary
    state: State

    def recorded(self) -> RecordedRun:
        return RecordedRun(self.name, self.folder.tree(), self.summary.metrics, self.summary.evaluations)


def write_comparison(
    folders: Sequence[RunFolder], path: Path, arguments: Sequence[str], sweep: Path | None = None
) -> Path:
    """Write the report of several runs to `path` and return it.

    `arguments` are the arguments of the command, for the last line of the page. `sweep` is the folder of the sweep whose runs they are, if any: the
    trials of its search are reported too. Raises ValueError if no run has metrics, if the runs are of several environments, or as `write_page`
    does.
    """
    members = [_Member(name, folder, summarize(folder), state_of(folder)[0]) for name, folder in _named(folders)]
    started = [member for member in members if member.summary.metrics]
    if not started:
        raise ValueError(f"{folders[0]} has no metrics yet, like all other runs: no report can be written")
    check_environment([member.recorded() for member in started])
    independent, repeats = _without_repeats(started)
    experiments = group_by_experiment([member.recorded() for member in independent])
    by_name = {member.name: member for member in started}
    groups = [[by_name[run.name] for run in experiment.runs] for experiment in experiments]
    goals = {member.summary.goal for member in started}
    goal = goals.pop() if len(goals) == 1 else None
    history = read_history(sweep) if sweep else None
    commands = {member.name: member.summary.command for member in started}
    content = {
        "title": sweep.resolve().name if sweep else f"{len(members)} runs compared",
        "written_by": shlex.join(["lockstep", "report", *arguments]),
        "source": "the run folders",
        "env_id": started[0].summary.config.env.id,
        "goal": goal,
        "states": _counts(members),
        "search": search_content(history, commands) if history else None,
        "experiments": [_results(*row) for row in zip(experiments, groups, _css_colors(experiments), strict=True)],
        "repeats": repeats,
        "legend": _legend(experiments),
        "bands": band_text(experiments),
        "curves": list(_curves(experiments, goal)),
        "differences": _differences(experiments, groups),
        "runs": [_row(member, path.parent) for member in members],
    }
    write_page(path, "comparison.html", content)
    return path


def _named(folders: Sequence[RunFolder]) -> Iterator[tuple[str, RunFolder]]:
    """Yield the folders with the shortest names that are unique: the name of the folder, or its path."""
    names = [folder.path.resolve().name for folder in folders]
    for name, folder in zip(names, folders, strict=True):
        yield name if names.count(name) == 1 else str(folder), folder


def _without_repeats(members: Sequence[_Member]) -> tuple[list[_Member], list[tuple[str, str]]]:
    """Return the members without those that repeat the config and the seed of another one, and the names of each of these and of its original.

    A repeated run says nothing about other seeds, so it must not make an interval over seeds narrower. A finished run is preferred as original.
    """
    originals: dict[str, _Member] = {}
    repeats = []
    for member in sorted(members, key=lambda member: member.summary.status != "finished"):
        key = json.dumps([member.recorded().experiment, member.summary.config.run.seed], sort_keys=True)
        original = originals.setdefault(key, member)
        if original is not member:
            repeats.append((member.name, original.name))
    repeated = {name for name, _ in repeats}
    return [member for member in members if member.name not in repeated], repeats


def _counts(members: Sequence[_Member]) -> str:
    states = [member.state for member in members]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _results(experiment: Experiment, group: Sequence[_Member], color: str) -> dict[str, Any]:
    """Return a row of the table of results. Runs that are not finished do not count."""
    finished = [member.summary for member in group if member.summary.status == "finished"]
    returns = [summary.final.value for summary in finished if summary.final]
    evaluated = [summary.evaluated.result.return_mean for summary in finished if summary.evaluated]
    solved = [summary.solved.env_steps for summary in finished if summary.solved]
    return {
        "label": experiment.label,
        "color": color,
        "runs": len(group),
        "finished": len(returns),
        "mean": _interval(returns, np.mean),
        "iqm": _interval(returns, interquartile_mean),
        "evaluated": len(evaluated),
        "evaluation": _interval(evaluated, interquartile_mean),
        "solved": len(solved),
        "steps": median(solved) if solved else None,
        "seconds": median(summary.seconds for summary in finished) if finished else None,
    }


def _interval(scores: Sequence[float], statistic: Any) -> str:
    """Format a statistic with its 95% interval over seeds, if there is more than one."""
    if not scores:
        return "–"
    estimate: Estimate = estimate_over_seeds(scores, statistic)
    value, low, high = map(short, estimate)
    return value if math.isnan(estimate.low) else f"{value} [{low}, {high}]"


def _css_colors(experiments: Sequence[Experiment]) -> list[str]:
    return [COLOR_NAMES[color.lower()] for color in colors_of(experiments)]


def _legend(experiments: Sequence[Experiment]) -> list[tuple[str, str]]:
    """Return the CSS color and the label of each experiment, with one entry for all that are not highlighted."""
    entries = [(color, one.label) for color, one in zip(_css_colors(experiments), experiments, strict=True)]
    idle = COLOR_NAMES["#bbbbbb"]
    named = [entry for entry in entries if entry[0] != idle]
    return named + [(idle, f"{len(entries) - len(named)} with lower returns at the end")] * (len(named) < len(entries))


def _curves(experiments: Sequence[Experiment], goal: float | None) -> Iterator[PageFigure]:
    for name, metric in METRICS.items():
        if not any(len(curve_of(run, name, "steps")[0]) for experiment in experiments for run in experiment.runs):
            continue
        draw = partial(draw_metric, experiments, name, over="steps", goal=goal)
        title = f"{metric.title[0].upper()}{metric.title[1:]} over environment steps"
        alt = f"{title} ({metric.unit}): {len(experiments)} experiments"
        narrow = inline_figure(partial(draw, size=NARROW), name)
        if name == "return":
            yield PageFigure(title, alt, inline_figure(partial(draw, size=WIDE), f"{name}-wide"), narrow)
        else:
            yield PageFigure(title, alt, narrow)


def _differences(experiments: Sequence[Experiment], groups: Sequence[Sequence[_Member]]) -> list[list[Any]]:
    """Return the table of the settings in which the experiments differ, with a row of headings.

    Settings that no run has from a user or a preset are left out: they follow from the others. Without differences, return no rows. The longer side of the table is vertical.
    """
    fields = [experiment.runs[0].experiment for experiment in experiments]
    origins: dict[str, set[str]] = {}
    for group in groups:
        for setting in group[0].summary.settings:
            origins.setdefault(setting.name, set()).add(setting.origin)
    names = [
        name
        for name in fields[0]
        if any(other.get(name) != fields[0][name] for other in fields) and origins.get(name, set()) & {"set", "preset"}
    ]
    if not names:
        return []
    columns: list[list[Any]] = [
        ["Setting", *(one.label if len(one.runs) > 1 else one.runs[0].name for one in experiments)]
    ]
    columns += [[name, *(other.get(name) for other in fields)] for name in names]
    return columns if len(names) > len(experiments) else [list(row) for row in zip(*columns, strict=True)]


def _row(member: _Member, folder: Path) -> dict[str, Any]:
    """Return a row of the table of runs. Links are relative to `folder`, in which the page is."""
    report = member.folder.path / "report.html"
    videos = sorted((member.folder.path / "videos").glob("*.mp4"), key=lambda path: path.stat().st_mtime_ns)
    summary = member.summary
    return {
        "name": member.name,
        "summary": summary,
        "state": member.state,
        "report": _link(report, folder) if report.is_file() else None,
        "video": _link(videos[-1], folder) if videos else None,
    }


def _link(path: Path, folder: Path) -> str:
    return quote(os.path.relpath(path.resolve(), folder.resolve()))
