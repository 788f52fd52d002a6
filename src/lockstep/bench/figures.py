"""Results of a scaling benchmark as rows: one per run, and one per kind and number of ranks. docs/scaling.md explains the columns."""

import math
import statistics
from collections.abc import Mapping, Sequence

from lockstep.algorithm.plan import Plan
from lockstep.bench.repeats import Spread, ratios, spread
from lockstep.bench.scaling import Measured
from lockstep.phases import PHASES

__all__ = ["ROLES", "Row", "run_rows", "summary_rows"]

Row = Mapping[str, object]
ROLES = {"rank0": "t_", "players": "player_t_"}
"""Prefix of the names of the time metrics, by role."""


def run_rows(measured: Sequence[Measured], cores: int) -> list[Row]:
    """Return one row per run, sorted by kind, ranks and repeat. `cores` is the number of cores that the ranks may use."""
    ordered = sorted(measured, key=lambda run: (run.case.kind, run.case.ranks, run.repeat))
    return [
        {
            **_case(run, cores),
            "repeat": run.repeat,
            "seed": run.config.run.seed,
            "warmup_iterations": run.training.uncounted,
            "iterations": len(run.training.counted),
            "env_steps": int(run.training.steps),
            "seconds": run.training.seconds,
            "steps_per_second": run.training.rate,
            "first_update_seconds": run.training.first_update,
            **_times(run),
            **_solved(run),
            "log": run.log,
        }
        for run in ordered
    ]


def _case(run: Measured, cores: int) -> dict[str, object]:
    config, ranks = run.case.config, run.case.ranks
    plan = Plan.make(config.plan, ranks)
    return {
        "kind": run.case.kind,
        "ranks": ranks,
        "plan": config.plan.kind,
        "players": len(plan.playing),
        "trainers": len(plan.training),
        "shards": len(plan.shards),
        "environments": config.env.count,
        "more_ranks_than_cores": ranks > cores,
    }


def _times(run: Measured) -> dict[str, float | None]:
    """Return the milliseconds per iteration by role and phase, as median and as mean. Means add up; medians are robust to single iterations."""
    times: dict[str, float | None] = {}
    for role, prefix in ROLES.items():
        for name in ("iter", *PHASES):
            column = [row[prefix + name] * 1e3 for row in run.training.counted if prefix + name in row]
            times[f"{role}_{name}_median_ms"] = statistics.median(column) if column else None
            times[f"{role}_{name}_mean_ms"] = statistics.fmean(column) if column else None
    return times


def _solved(run: Measured) -> dict[str, object]:
    goal, rows = run.config.run.solved_return, run.training.rows
    reached = next((row for row in rows if goal is not None and row.get("return_mean_20", -float("inf")) >= goal), None)
    return {
        "solved_return": goal,
        "steps_to_return": None if reached is None else int(reached["env_steps"]),
        "seconds_to_return": None if reached is None else reached["seconds"],
        "last_return": rows[-1].get("return_mean_20"),
    }


def summary_rows(runs: Sequence[Row]) -> list[Row]:
    """Combine the rows of `run_rows` by kind and number of ranks. Speed-ups are relative to the fewest ranks in the same repeat."""
    groups: dict[tuple[object, object], list[Row]] = {}
    for row in runs:
        groups.setdefault((row["kind"], row["ranks"]), []).append(row)
    rows: list[Row] = []
    for (kind, ranks), group in groups.items():
        base = next(members for (other, _), members in groups.items() if other == kind)
        speedup = ratios(_column(group, "steps_per_second"), _column(base, "steps_per_second"))
        share = float(str(base[0]["ranks"])) / float(str(ranks))
        efficiency = Spread(speedup.median * share, speedup.least * share, speedup.most * share)
        rows.append(
            {
                **{name: group[0][name] for name in list(group[0])[: list(group[0]).index("repeat")]},
                "repeats": len(group),
                "interval_confidence": 1 - 2.0 ** (1 - len(group)),
                **_spread("steps_per_second", spread(_column(group, "steps_per_second"))),
                "speedup_base_ranks": base[0]["ranks"],
                **_spread("speedup", speedup),
                **_spread("efficiency", efficiency),
                **_shares(group),
                "solved_return": group[0]["solved_return"],
                "repeats_solved": len(_column(group, "seconds_to_return")),
                **_spread("seconds_to_return", _spread_to_return(group, "seconds_to_return")),
                **_spread("steps_to_return", _spread_to_return(group, "steps_to_return")),
            }
        )
    return rows


def _column(rows: Sequence[Row], name: str) -> list[float]:
    return [float(str(row[name])) for row in rows if row[name] is not None]


def _spread_to_return(rows: Sequence[Row], name: str) -> Spread:
    """Return the spread of a column. Repeats that did not reach the return count as infinite: without them the median would be too good."""
    return spread([math.inf if row[name] is None else float(str(row[name])) for row in rows])


def _spread(name: str, values: Spread) -> dict[str, object]:
    parts = {f"{name}_{part}": getattr(values, part) for part in ("median", "least", "most")}
    return {key: None if math.isinf(value) else value for key, value in parts.items()}


def _shares(rows: Sequence[Row]) -> dict[str, object]:
    """Return the mean time of an iteration of every role, and the share of each phase in it. The shares of a role add up to 1."""
    shares: dict[str, object] = {}
    for role in ROLES:
        total = sum(_column(rows, f"{role}_iter_mean_ms"))
        shares[f"{role}_iter_mean_ms"] = total / len(rows) if total else None
        for phase in PHASES:
            shares[f"{role}_{phase}_share"] = sum(_column(rows, f"{role}_{phase}_mean_ms")) / total if total else None
    return shares
