"""HTML report of a run. The file is self-contained: it loads no other file and contains no script."""

import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from lockstep.report.curves import METRICS, curve_of, draw_metric
from lockstep.report.evaluate import Evaluation
from lockstep.report.experiments import Experiment, RecordedRun
from lockstep.report.html import NARROW, WIDE, PageFigure, flags_apart, short, write_page
from lockstep.report.inline import COLOR_NAMES, inline_figure, inline_video
from lockstep.report.style import Over
from lockstep.report.summary import RunSummary, Setting, summarize
from lockstep.report.timing import PHASE_COLORS, draw_time_per_iteration, mean_seconds
from lockstep.run.folder import RunFolder

__all__ = ["write_report"]

_LARGEST_VIDEO = 20_000_000
"""Largest size in bytes of a video that is embedded in the page. Browsers open a page of this size without delay."""
_PHASES = {
    "rollout": "collecting rollouts",
    "learn": "update: computing gradients and optimizer steps",
    "sync": "transferring data between ranks and reducing gradients",
    "wait": "idle, waiting for other ranks",
    "publish": "sending the new agent to the players",
    "record": "metrics and checkpoints",
}


def write_report(folder: RunFolder, path: Path | None = None) -> Path:
    """Write the report of a run to `path`, by default `report.html` in its folder, and return the path. The file is never incomplete.

    Raises ValueError if the run has no metrics, a file cannot be read or written, or a package is missing.
    """
    summary = summarize(folder)
    if not summary.metrics:
        raise ValueError(f"{folder} has no metrics yet: no report can be written")
    path = path or folder.path / "report.html"
    write_page(path, "page.html", _content(summary, folder))
    return path


def _content(summary: RunSummary, folder: RunFolder) -> dict[str, Any]:
    run = RecordedRun(summary.name, folder.tree(), summary.metrics, summary.evaluations)
    changed = [setting for setting in summary.settings if setting.origin != "default" and setting.name != "run.name"]
    last_20 = Evaluation(list(summary.returns), []) if len(summary.returns) > 1 else None
    return {
        "title": summary.name,
        "written_by": f"lockstep report {shlex.quote(str(folder))}",
        "source": "the run folder",
        "run": summary,
        "path": folder.path,
        "last_20": last_20 if summary.checkpoint == summary.iteration else None,
        "best": next((row for row in summary.evaluations if summary.best_checkpoint == row["iteration"]), None),
        "evaluations": [evaluated for evaluated in (summary.evaluated, summary.sampled) if evaluated],
        "curves": list(_curves(run, summary.goal)),
        "roles": [_role(role, phases) for role, phases in mean_seconds(summary.metrics).items()],
        "courses": list(_time_figures(run)),
        "command": flags_apart(summary.command),
        "changed": changed,
        "pruned": folder.why_pruned(),
        "starts": list(_starts(summary)),
        "sections": {name: list(settings) for name, settings in groupby(summary.settings, _section)},
        "video": _newest_video(folder),
    }


def _curves(run: RecordedRun, goal: float | None) -> Iterator[PageFigure]:
    for name in METRICS:
        for over in ("steps", "seconds") if name == "return" else ("steps",):
            if len(curve_of(run, name, over)[0]):
                yield _curve(run, name, over, goal)


def _curve(run: RecordedRun, name: str, over: Over, goal: float | None) -> PageFigure:
    metric = METRICS[name]
    title = (
        f"{metric.title[0].upper()}{metric.title[1:]} over {'environment steps' if over == 'steps' else 'wall time'}"
    )
    wide = name == "return" and over == "steps"
    sizes = {"-wide": WIDE, "": NARROW} if wide else {"": NARROW}
    draw = partial(draw_metric, [Experiment("", [run])], name, over=over, goal=goal)
    figures = [inline_figure(partial(draw, size=size), f"{name}-{over}{suffix}") for suffix, size in sizes.items()]
    values = curve_of(run, name, over)[1].tolist()
    begin, end, low, high = map(short, (values[0], values[-1], min(values), max(values)))
    alt = f"{title} ({metric.unit}): from {begin} to {end}, at least {low}, at most {high}"
    return PageFigure(title, alt, figures[0], figures[1] if wide else None)


def _draw_times(run: RecordedRun, role: str, path: Path) -> None:
    draw_time_per_iteration(run, role, path, "steps")


def _time_figures(run: RecordedRun) -> Iterator[PageFigure]:
    for number, role in enumerate(mean_seconds(run.metrics)):
        svg = inline_figure(partial(_draw_times, run, role), f"course-{number}")
        title = f"Time per iteration over environment steps, {role}"
        yield PageFigure(title, f"{title}: stacked by phase", svg)


def _role(name: str, phases: dict[str, float]) -> dict[str, Any]:
    """Return the rows of the table of phases; `percent` is also the width of a section of the bar."""
    total = sum(phases.values())
    rows = [
        {
            "phase": phase,
            "description": _PHASES[phase],
            "milliseconds": 1000 * seconds,
            "percent": 100 * seconds / total if total else 0.0,
            "color": COLOR_NAMES[PHASE_COLORS[phase].lower()],
        }
        for phase, seconds in phases.items()
    ]
    return {"name": name, "rows": rows, "milliseconds": 1000 * total}


def _starts(summary: RunSummary) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table of starts: the start, how it ended, and the packages that changed since the start before."""
    earlier: Mapping[str, str] = {}
    for number, start in enumerate(summary.starts, 1):
        running = number == len(summary.starts) and summary.status == "running"
        ends = {"done": "done", "stopped": f"stopped by {start.why}", "failed": f"failed: {start.why}"}
        names = sorted(
            name for name in {*earlier, *start.packages} if earlier and earlier.get(name) != start.packages.get(name)
        )
        yield {
            "start": start,
            "end": ends[start.how] if start.how else "running" if running else "killed: no end was recorded",
            "failed": start.how == "failed" or (start.how is None and not running),
            "changes": [f"{name} {earlier.get(name, 'none')} → {start.packages.get(name, 'none')}" for name in names],
        }
        earlier = start.packages


def _section(setting: Setting) -> str:
    return setting.name.partition(".")[0]


def _newest_video(folder: RunFolder) -> dict[str, Any] | None:
    """Return the newest video of the run, or None if there is none. Its `uri` is None if the file is too large to embed."""
    videos = [(path.stat().st_mtime_ns, path) for path in (folder.path / "videos").glob("*.mp4")]
    if not videos:
        return None
    _, path = max(videos)
    size = path.stat().st_size
    uri = inline_video(path) if size <= _LARGEST_VIDEO else None
    return {"name": path.name, "path": path, "megabytes": size / 1e6, "uri": uri}
