"""What came of a sweep: a row per run, a row per combination over its seeds, and a table of these."""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.processes.exit_codes import PREEMPTED
from lockstep.sweep.member import Member, is_done, labels
from lockstep.sweep.values import SEED

__all__ = ["DONE", "FAILED", "STOPPED", "Row", "best", "run_row", "summary_rows", "table"]

Row = Mapping[str, Any]
DONE, STOPPED, FAILED, NEW = "done", "stopped", "failed", "new"
_WIDTH = 80


def run_row(member: Member, code: int | None) -> Row:
    """How a run went. `code` is the exit code of its process, None if it had none this time."""
    metrics = member.folder.metrics()
    last: Mapping[str, Any] = metrics[-1] if metrics else {}
    state = DONE if is_done(member) else FAILED if code not in (None, PREEMPTED) else STOPPED if last else NEW
    returns = [row["return_mean"] for row in metrics if row.get("return_mean") is not None]
    whole = last.get("return_mean_20")
    return {
        "run": member.name,
        **member.values,
        SEED: member.config.run.seed,
        "state": state,
        "exit_code": code,
        "return": whole if whole is not None else returns[-1] if returns else None,
        "env_steps": last.get("env_steps"),
        "seconds": last.get("seconds"),
        "digest": last.get("digest"),
    }


def summary_rows(members: Sequence[Member], runs: Sequence[Row]) -> list[Row]:
    """One row per combination: medians, and quartiles of the return, over the seeds that are done."""
    groups: dict[tuple[tuple[str, object], ...], list[Row]] = {}
    for member, run in zip(members, runs, strict=True):
        key = tuple((path, _key(value)) for path, value in member.values.items() if path != SEED)
        groups.setdefault(key, []).append(run)
    rows: list[Row] = []
    for key, own in groups.items():
        done = [run for run in own if run["state"] == DONE]
        returns = [run["return"] for run in done if run["return"] is not None]
        low, middle, high = np.percentile(returns, (25, 50, 75)).tolist() if returns else (None, None, None)
        rows.append(
            {
                **{path: own[0][path] for path, _ in key},
                "seeds": len(own),
                "done": len(done),
                "failed": sum(run["state"] == FAILED for run in own),
                "return_median": middle,
                "return_first_quartile": low,
                "return_third_quartile": high,
                "env_steps_median": _median(done, "env_steps"),
                "seconds_median": _median(done, "seconds"),
            }
        )
    return rows


def _key(value: object) -> object:
    return tuple(value) if isinstance(value, list) else repr(value) if isinstance(value, dict) else value


def _median(rows: Sequence[Row], name: str) -> float | None:
    return statistics.median(row[name] for row in rows) if rows else None


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of a table of combinations, as given; what matters least is left out where a line would have more than 80 columns."""
    paths = [name for name in rows[0] if "." in name or name == "trial"]
    short = labels(paths)
    columns = [
        *((short[path], [_shown(row[path]) for row in rows]) for path in paths),
        ("done", [f"{row['done']} of {row['seeds']}" for row in rows]),
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
    """The combination with the highest median return, in words; None where no run is done."""
    done = [row for row in rows if row["return_median"] is not None]
    if not done:
        return None
    row = max(done, key=lambda one: one["return_median"])
    values = ", ".join(f"{name} {_shown(value)}" for name, value in row.items() if "." in name or name == "trial")
    return f"{_number(row['return_median'])} with {values}" if values else None


def _quartiles(row: Row) -> str:
    return (
        "-"
        if row["return_median"] is None
        else " to ".join(_number(row[f"return_{part}_quartile"]) for part in ("first", "third"))
    )


def _number(value: float | None, form: str = ".4g") -> str:
    return "-" if value is None else format(value, form)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return "x".join(map(str, value))
    return json.dumps(value) if value is None or isinstance(value, bool | dict) else str(value)
