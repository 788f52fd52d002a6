"""A run as one HTML file: nothing in it asks for another file, and nothing in it runs."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.config.flags import as_text
from lockstep.report.curves import LABELS, curve_of, draw_metric
from lockstep.report.evaluate import Evaluation
from lockstep.report.experiments import Recorded
from lockstep.report.inline import COLOUR_NAMES, inline_film, inline_picture
from lockstep.report.style import Over
from lockstep.report.summary import RunSummary, Setting, summarize
from lockstep.report.timing import PHASE_COLOURS, draw_course, mean_seconds, plain_number
from lockstep.run.folder import RunFolder, write_aside

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["write_report"]

_LARGEST_FILM = 20_000_000
"""Bytes of a film that is put into the page: a browser still opens it at once."""
_PHASES = {
    "rollout": "collecting",
    "learn": "the update",
    "sync": "moving and adding what ranks exchange",
    "wait": "idle, waiting for other ranks",
    "publish": "handing the new agent to the players",
    "record": "metrics and checkpoints",
}
_HOUR, _MINUTE = 3600, 60


@dataclass(frozen=True)
class _Figure:
    title: str
    alt: str
    """The same in words, for whoever can't see it."""
    svg: str


def write_report(folder: RunFolder) -> Path:
    """Writes `report.html` into a run's folder, whole or not at all, and gives its path.

    Raises ValueError, in one line: a run without metrics, a file that can't be read or written, a missing package.
    """
    found = summarize(folder)
    if not found.metrics:
        raise ValueError(f"{folder.path} has no metrics yet, so there is nothing to report")
    path = folder.path / "report.html"
    text = _environment().get_template("page.html").render(_content(found, folder))
    try:
        write_aside(path, text.encode())
    except OSError as error:
        raise ValueError(f"{path} can't be written ({error.strerror})") from None
    return path


def _environment() -> "Environment":
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise ValueError("a report needs Jinja2; pip install 'lockstep-rl[report]'") from None
    environment = Environment(
        loader=PackageLoader("lockstep.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "whole": "{:,}".format,
        "short": _short,
        "duration": _duration,
        "plain": as_text,
        "number": plain_number,
        "quoted": _quoted,
    }
    return environment


def _content(found: RunSummary, folder: RunFolder) -> dict[str, Any]:
    """What the template shows."""
    run = Recorded(found.name, folder.tree(), found.metrics)
    changed = [setting for setting in found.settings if setting.origin != "default" and setting.name != "run.name"]
    last_20 = Evaluation(list(found.returns), []) if len(found.returns) > 1 else None
    return {
        "run": found,
        "path": folder.path,
        "last_20": last_20 if found.checkpoint == found.iteration else None,
        "evaluations": [evaluated for evaluated in (found.evaluated, found.sampled) if evaluated],
        "curves": list(_curves(run, found.goal)),
        "roles": [_role(role, phases) for role, phases in mean_seconds(found.metrics).items()],
        "courses": list(_courses(run)),
        "command": re.split(r" (?=--)", found.command or ""),  # a line never breaks within a flag
        "changed": changed,
        "starts": list(_starts(found)),
        "sections": _sections(found.settings),
        "film": _film(folder),
    }


def _curves(run: Recorded, goal: float | None) -> Iterator[_Figure]:
    for name, label in LABELS.items():
        for over in ("steps", "seconds") if name == "return" else ("steps",):
            if len(curve_of(run, name, over)[0]):
                yield _curve(run, name, label, over, goal)


def _curve(run: Recorded, name: str, label: str, over: Over, goal: float | None) -> _Figure:
    title, _, unit = label.replace("\n", " ").partition(" (")
    title = f"{title[0].upper()}{title[1:]} over {'environment steps' if over == 'steps' else 'wall time'}"
    svg = inline_picture(lambda path: draw_metric(run, name, path, over, goal), f"{name}-{over}")
    values = curve_of(run, name, over)[1].tolist()
    begin, end, low, high = map(_short, (values[0], values[-1], min(values), max(values)))
    return _Figure(title, f"{title} ({unit}: from {begin} to {end}, at least {low}, at most {high}", svg)


def _courses(run: Recorded) -> Iterator[_Figure]:
    for number, role in enumerate(mean_seconds(run.metrics)):
        svg = inline_picture(lambda path, role=role: draw_course(run, role, path, "steps"), f"course-{number}")  # type: ignore[misc]
        title = f"Time per iteration over environment steps, {role}"
        yield _Figure(title, f"{title}: phases on top of each other", svg)


def _role(name: str, phases: dict[str, float]) -> dict[str, Any]:
    """Rows of a table, and widths of a bar."""
    whole = sum(phases.values())
    rows = [
        {
            "phase": phase,
            "does": _PHASES[phase],
            "milliseconds": 1000 * seconds,
            "percent": 100 * seconds / whole if whole else 0.0,
            "colour": COLOUR_NAMES[PHASE_COLOURS[phase].lower()],
        }
        for phase, seconds in phases.items()
    ]
    return {"name": name, "rows": rows, "milliseconds": 1000 * whole}


def _starts(found: RunSummary) -> Iterator[dict[str, Any]]:
    """Rows of a table: who carried it, how that ended in words, and what was installed anew since the start before."""
    before: Mapping[str, str] = {}
    for number, start in enumerate(found.starts, 1):
        going_on = number == len(found.starts) and found.status == "running"
        ends = {"done": "done", "stopped": f"stopped by {start.why}", "failed": f"failed: {start.why}"}
        names = sorted(
            name for name in {*before, *start.packages} if before and before.get(name) != start.packages.get(name)
        )
        yield {
            "start": start,
            "end": ends[start.how] if start.how else "goes on" if going_on else "killed: it left no word",
            "fault": start.how == "failed" or (start.how is None and not going_on),
            "news": [f"{name} {before.get(name, 'none')} → {start.packages.get(name, 'none')}" for name in names],
        }
        before = start.packages


def _sections(settings: Any) -> dict[str, list[Setting]]:
    sections: dict[str, list[Setting]] = {}
    for setting in settings:
        sections.setdefault(setting.name.partition(".")[0], []).append(setting)
    return sections


def _film(folder: RunFolder) -> dict[str, Any] | None:
    """The newest one, whose `uri` is none if it is too large; None: there is none."""
    films = [(path.stat().st_mtime_ns, path) for path in (folder.path / "videos").glob("*.mp4")]
    if not films:
        return None
    _, path = max(films)
    size = path.stat().st_size
    uri = inline_film(path) if size <= _LARGEST_FILM else None
    return {"name": path.name, "path": path, "megabytes": size / 1e6, "uri": uri}


def _short(value: float) -> str:
    """Four digits that count, large numbers with commas: 123,456, -0.1235, 500."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _duration(seconds: float) -> str:
    if round(seconds, 1) < _MINUTE:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
