"""Results of a sweep: one row per run, one row per combination of values with statistics over its seeds, and a table of the latter."""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.processes.exit_codes import STOPPED_BY_SIGNAL
from lockstep.sweep.member import Member, is_done, labels
from lockstep.sweep.values import SEED
from lockstep.telemetry.status import RecentReturn

__all__ = ["DONE", "FAILED", "PRUNED", "STOPPED", "Row", "best", "run_row", "summary_rows", "table"]

Row = Mapping[str, Any]
DONE, PRUNED, STOPPED, FAILED, NEW = "done", "pruned", "stopped", "failed", "new"
_WIDTH = 80


def run_row(member: Member, code: int | None) -> Row:
    """Return the result of a run. `code` is the exit code of its process, or None if no process was started for it this time."""
    metrics = member.folder.readable_metrics()
    last: Mapping[str, Any] = metrics[-1] if metrics else {}
    if member.folder.why_pruned() is not None:
        state = PRUNED
    elif is_done(member):
        state = DONE
    else:
        state = FAILED if code not in (None, STOPPED_BY_SIGNAL) else STOPPED if last else NEW
    return {
        "run": member.name,
        **member.values,
        SEED: member.config.run.seed,
        "state": state,
        "exit_code": code,
        "return": RecentReturn(metrics).mean,
        "env_steps": last.get("env_steps"),
        "seconds": last.get("seconds"),
        "digest": last.get("digest"),
    }


def summary_rows(members: Sequence[Member], runs: Sequence[Row]) -> list[Row]:
    """Return one row per combination of values: medians, and quartiles of the return, over the seeds that are done or pruned."""
    groups: dict[tuple[tuple[str, object], ...], list[Row]] = {}
    for member, run in zip(members, runs, strict=True):
        key = tuple((path, _key(value)) for path, value in member.values.items() if path != SEED)
        groups.setdefault(key, []).append(run)
    rows: list[Row] = []
    for key, group in groups.items():
        ended = [run for run in group if run["state"] in (DONE, PRUNED)]
        returns = [run["return"] for run in ended if run["return"] is not None]
        low, median, high = np.percentile(returns, (25, 50, 75)).tolist() if returns else (None, None, None)
        rows.append(
            {
                **{path: group[0][path] for path, _ in key},
                "seeds": len(group),
                "done": sum(run["state"] == DONE for run in group),
                "pruned": sum(run["state"] == PRUNED for run in group),
                "failed": sum(run["state"] == FAILED for run in group),
                "return_median": median,
                "return_first_quartile": low,
                "return_third_quartile": high,
                "env_steps_median": _median(ended, "env_steps"),
                "seconds_median": _median(ended, "seconds"),
            }
        )
    return rows


def _key(value: object) -> object:
    """Return a hashable key for a value of a field."""
    return tuple(value) if isinstance(value, list) else repr(value) if isinstance(value, dict) else value


def _median(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]  # a seed of a pruned trial may not have started
    return statistics.median(values) if values else None


def table(rows: Sequence[Row]) -> list[str]:
    """Format the rows of `summary_rows` as lines of a table. The last columns are dropped if a line would exceed 80 characters."""
    paths = [name for name in rows[0] if "." in name or name == "trial"]
    short = labels(paths)
    columns = [
        *((short[path], [_text(row[path]) for row in rows]) for path in paths),
        ("done", ["pruned" if row["pruned"] else f"{row['done']} of {row['seeds']}" for row in rows]),
        ("return", [_number(row["return_median"]) for row in rows]),
        ("quartiles", [_quartiles(row) for row in rows]),
        ("seconds", [_number(row["seconds_median"], ",.1f") for row in rows]),
        ("steps", [_number(row["env_steps_median"], ",.0f") for row in rows]),
    ]
    widths = [max(map(len, (name, *cells))) for name, cells in columns]
    while len(columns) > len(paths) + 2 and sum(widths) + 2 * len(widths) > _WIDTH:
        columns.pop()
        widths.pop()
    lines = [[name for name, _ in columns], *zip(*(cells for _, cells in columns), strict=True)]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]


def best(rows: Sequence[Row]) -> str | None:
    """Describe the combination with the highest median return. Return None if no run is done."""
    done = [row for row in rows if row["return_median"] is not None and not row["pruned"]]
    if not done:
        return None
    row = max(done, key=lambda row: row["return_median"])
    values = ", ".join(f"{name} {_text(value)}" for name, value in row.items() if "." in name or name == "trial")
    return f"{_number(row['return_median'])} with {values}" if values else None


def _quartiles(row: Row) -> str:
    return (
        "-"
        if row["return_median"] is None
        else " to ".join(_number(row[f"return_{part}_quartile"]) for part in ("first", "third"))
    )


def _number(value: float | None, form: str = ".4g") -> str:
    return "-" if value is None else format(value, form)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return "x".join(map(str, value))
    return json.dumps(value) if value is None or isinstance(value, bool | dict) else str(value)
