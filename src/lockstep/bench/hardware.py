"""Comparison of the same experiment on one process, on one process per core and on a GPU."""

import statistics
from collections.abc import Mapping

from lockstep.bench.repeats import disturbance_note
from lockstep.bench.throughput import Throughput

__all__ = ["compare", "record"]

_NO_GPU = "no GPU"
_PARTS = {
    "rollout": ("rollout",),
    "optimization": ("learn",),
    "exchange, waiting": ("sync", "wait", "publish"),
    "logging": ("record",),
}
"""Parts of an iteration in the table, and the phases of each part."""


def compare(cases: Mapping[str, Throughput], gpu: bool) -> list[str]:
    """Format the cases as lines of at most 80 columns, with one column per case, named by its key. Without a `gpu`, a column says so."""
    results = list(cases.values())
    env, rollout = results[0].config.env, results[0].config.rollout
    lines = [
        f"{env.id}: {env.count} environments ({env.engine}) x {rollout.steps} steps",
        f"{len(results[0].trainings)} repeats; the first tenth of the iterations of each, at least 2, is not counted",
        "",
        _line("", [*cases, *([] if gpu else ["GPU"])]),
        _line("steps per second", [*(f"{result.rate.median:,.0f}" for result in results), *([] if gpu else [_NO_GPU])]),
        _line("  least", [f"{result.rate.least:,.0f}" for result in results]),
        _line("  most", [f"{result.rate.most:,.0f}" for result in results]),
        _line("environments alone", [f"{result.engine.median:,.0f}" for result in results]),
        _line("training / alone", [f"{result.share.median:.1%}" for result in results]),
        "",
        "milliseconds per iteration",
    ]
    for part in _PARTS:
        lines.append(_line(f"  {part}", [f"{_milliseconds(result, part):,.2f}" for result in results]))
    lines.append(_line("  total", [f"{result.middle.phases()['iter'] * 1e3:,.2f}" for result in results]))
    first = (statistics.median_high(training.first_update for training in result.trainings) for result in results)
    lines.append(_line("first update after", [f"{seconds:.2f} s" for seconds in first]))
    if any(result.middle.phases("player_t_") for result in results):
        lines += ["", "rollout: mean of the ranks that play; all others: rank 0, which waits for them"]
    widest = max(max(result.rate.range, result.engine.range) for result in results)
    return [*lines, *disturbance_note(widest)]


def record(cases: Mapping[str, Throughput], gpu: bool) -> dict[str, object]:
    """Return all results as JSON data."""
    records: dict[str, object] = {
        name: {
            "device": result.config.runtime.device,
            "plan": result.config.plan.kind,
            "milliseconds_per_iteration": {part: _milliseconds(result, part) for part in _PARTS},
            **result.record(),
        }
        for name, result in cases.items()
    }
    return {"gpu": gpu, "cases": records}


def _milliseconds(result: Throughput, part: str) -> float:
    phases = result.middle.phases("player_t_") if part == "rollout" else {}
    return sum((phases or result.middle.phases())[phase] for phase in _PARTS[part]) * 1e3


def _line(name: str, cells: list[str]) -> str:
    return f"{name:<24}" + "".join(f"{cell:>16}" for cell in cells)
