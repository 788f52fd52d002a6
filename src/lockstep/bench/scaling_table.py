"""Table of a scaling benchmark for a terminal of 80 columns."""

from collections.abc import Sequence
from typing import Any

from lockstep.bench.figures import ROLES, Row
from lockstep.bench.repeats import disturbance_note
from lockstep.config import Config
from lockstep.phases import PHASES

__all__ = ["table"]

_ROLES = {"rank0": "rank 0", "players": "players"}


def table(config: Config, rows: Sequence[Row], cores: int) -> list[str]:
    """Format the rows of `summary_rows` as lines of at most 80 columns. `config` is the resolved experiment."""
    env, kernels = config.env, "with kernels" if config.runtime.compile == "on" else "without kernels"
    lines = [
        f"{env.id}: {env.count} environments ({env.engine}) x {config.rollout.steps} steps, {kernels}",
        f"strong: the same experiment; weak: {env.count} environments per rank that plays",
        "",
        *_rates(rows),
        "",
        *_shares(rows),
    ]
    if rows[0]["solved_return"] is not None and any(row["repeats_solved"] for row in rows):
        lines += ["", *_times_to_return(rows)]
    return lines + _notes(rows, cores)


def _rates(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'':<7}{'ranks':>6}{'steps/s':>13}{'range':>20}{'speed-up':>10}{'range':>12}{'efficiency':>12}"]
    for row, kind in zip(rows, _kinds(rows), strict=True):
        rate, speedup = _parts(row, "steps_per_second"), _parts(row, "speedup")
        lines.append(
            f"{kind:<7}{_ranks(row):>6}{rate[0]:>13,.0f}{f'{rate[1]:,.0f}-{rate[2]:,.0f}':>20}{speedup[0]:>10.2f}"
            f"{f'{speedup[1]:.2f}-{speedup[2]:.2f}':>12}{row['efficiency_median']:>12.0%}"
        )
    return lines


def _shares(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'':<7}{'ranks':>6}{'time of':>10}" + "".join(f"{phase:>8}" for phase in PHASES) + f"{'ms':>9}"]
    for row, kind in zip(rows, _kinds(rows), strict=True):
        for role in ROLES:
            milliseconds: Any = row[f"{role}_iter_mean_ms"]
            if milliseconds is not None:
                label = f"{kind:<7}{_ranks(row):>6}" if role == "rank0" else " " * 13
                shares = "".join(f"{row[f'{role}_{phase}_share']:>8.0%}" for phase in PHASES)
                lines.append(f"{label}{_ROLES[role]:>10}{shares}{milliseconds:>9,.1f}")
    return lines


def _times_to_return(rows: Sequence[Row]) -> list[str]:
    lines = [
        f"training until the mean return of the last 20 episodes is {rows[0]['solved_return']:g}",
        f"{'':<7}{'ranks':>6}{'seconds':>13}{'range':>20}{'steps':>14}{'reached':>12}",
    ]
    for row, kind in zip(rows, _kinds(rows), strict=True):
        seconds, (steps, _, _) = _parts(row, "seconds_to_return"), _parts(row, "steps_to_return")
        median, least, most = ("never" if part is None else f"{part:,.1f}" for part in seconds)
        reached = f"{row['repeats_solved']} of {row['repeats']}"
        lines.append(
            f"{kind:<7}{_ranks(row):>6}{median:>13}{f'{least} to {most}':>20}{'-' if steps is None else f'{steps:,.0f}':>14}{reached:>12}"
        )
    return lines


def _notes(rows: Sequence[Row], cores: int) -> list[str]:
    notes = []
    if any(row["more_ranks_than_cores"] for row in rows):
        notes.append(f"*: more ranks than the {cores} core{'s' * (cores > 1)} of this machine, so ranks share cores")
    rates = [_parts(row, "steps_per_second") for row in rows]
    widest = max((most - least) / median for median, least, most in rates)
    notes += disturbance_note(widest)[1:]  # without its empty line
    return ["", *notes] if notes else []


def _kinds(rows: Sequence[Row]) -> list[str]:
    """Return the kind of every row; an empty string if it equals that of the row before."""
    kinds = [str(row["kind"]) for row in rows]
    return [kind if index == 0 or kind != kinds[index - 1] else "" for index, kind in enumerate(kinds)]


def _ranks(row: Row) -> str:
    return f"{row['ranks']}{'*' if row['more_ranks_than_cores'] else ' '}"


def _parts(row: Row, name: str) -> tuple[Any, Any, Any]:
    """Return the median, the minimum and the maximum of a value."""
    return row[f"{name}_median"], row[f"{name}_least"], row[f"{name}_most"]
