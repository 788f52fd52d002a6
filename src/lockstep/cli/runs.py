"""`lockstep runs`: list runs with their state and newest numbers."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep.cli.arguments import Arguments
from lockstep.run.settings import RunConfig
from lockstep.telemetry.listing import STATES, ListedRun, list_runs

__all__ = ["main", "table"]

_SORT: dict[str, Callable[[ListedRun], tuple[bool, float | str]]] = {
    "age": lambda run: (False, run.age),
    "name": lambda run: (False, str(run.path)),
    "return": lambda run: (run.return_mean is None, -(run.return_mean or 0)),
    "steps": lambda run: (False, -run.steps),
    "speed": lambda run: (False, -(run.steps_per_second or 0)),
}
"""Sort keys: runs without the value come last."""


def main(argv: Sequence[str]) -> int:
    """Print the table of runs, or JSON. Return the exit code."""
    parser = Arguments(
        "runs", "Lists the runs in a folder, and those of the sweeps in it, with state and newest numbers."
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(RunConfig.folder),
        metavar="DIR",
        help=f"folder that holds runs (default {RunConfig.folder})",
    )
    parser.add_argument(
        "--state", choices=STATES, metavar="STATE", help=f"only runs in this state: {', '.join(STATES)}"
    )
    parser.add_argument("--env", metavar="ID", help="only runs of this environment")
    parser.add_argument("--sort", choices=list(_SORT), default="age", help="order of the rows (default age)")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    args = parser.read(argv)
    if not args.folder.is_dir():
        raise ValueError(f"{args.folder}: there is no such folder")
    listed = [run for run in list_runs(args.folder, args.state) if args.env is None or run.env == args.env]
    listed.sort(key=_SORT[args.sort])
    if args.json:
        print(json.dumps([dataclasses.asdict(run) | {"path": str(run.path)} for run in listed], indent=2))
    else:
        such = "such " if args.state or args.env else ""
        print(table(listed, args.folder) if listed else f"{args.folder} holds no {such}runs")
    return 0


def table(listed: Sequence[ListedRun], root: Path) -> str:
    """Format runs of the folder `root` as a table with a line of headings, and a line with the reason for each run that has failed or is broken."""
    rows = [("run", "state", "environment", "steps", "return", "steps/s", "age")]
    for run in listed:
        speed = "–" if run.steps_per_second is None else f"{run.steps_per_second:,.0f}"
        value = "–" if run.return_mean is None else f"{run.return_mean:.4g}"
        name = str(run.path.relative_to(root))
        rows.append((name, run.state, run.env, f"{run.steps:,} {run.share:>3}%", value, speed, _duration(run.age)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    aligned = "<<<>>>>"
    lines = (
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths, strict=True))
        for row in rows
    )
    explained = [run for run in listed if run.why and run.state in ("broken", "failed")]
    reasons = [f"{run.path.relative_to(root)}: {run.why}" for run in explained]
    return "\n".join([*(line.rstrip() for line in lines), *reasons])


def _duration(seconds: float) -> str:
    """Format a duration in its largest unit."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
