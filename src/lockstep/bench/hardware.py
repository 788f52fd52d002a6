"""The same experiment on one process, on one per core and on a GPU, beside each other."""

from collections.abc import Mapping

from lockstep.bench.repeats import DISTURBED
from lockstep.bench.throughput import Throughput

__all__ = ["compare", "record"]

_NO_GPU = "none here"
_PARTS = {
    "rollout": ("rollout",),
    "optimization": ("learn",),
    "exchange, waiting": ("sync", "wait", "publish"),
    "logging": ("record",),
}
"""What an iteration is made of, and the phases of each part."""


def compare(found: Mapping[str, Throughput], gpu: bool) -> list[str]:
    """Lines of at most 80 columns, with a column for each, named by its key. `gpu`: whether there is one; else its column says so."""
    all_of_it = list(found.values())
    env, rollout = all_of_it[0].config.env, all_of_it[0].config.rollout
    lines = [
        f"{env.id}: {env.count} environments ({env.engine}) x {rollout.steps} steps",
        f"{len(all_of_it[0].trainings)} repeats; of each the first tenth of the iterations, at least 2, is left out",
        "",
        _line("", [*found, *([] if gpu else ["GPU"])]),
    ]
    none = [] if gpu else [_NO_GPU]
    lines.append(_line("steps per second", [f"{one.rate.median:,.0f}" for one in all_of_it] + none))
    lines.append(_line("  least", [f"{one.rate.least:,.0f}" for one in all_of_it]))
    lines.append(_line("  most", [f"{one.rate.most:,.0f}" for one in all_of_it]))
    lines.append(_line("environments alone", [f"{one.engine.median:,.0f}" for one in all_of_it]))
    lines.append(_line("training / alone", [f"{one.share.median:.1%}" for one in all_of_it]))
    lines += ["", "milliseconds per iteration"]
    for part in _PARTS:
        lines.append(_line(f"  {part}", [f"{_milliseconds(one, part):,.2f}" for one in all_of_it]))
    lines.append(_line("  whole", [f"{one.middle.phases()['iter'] * 1e3:,.2f}" for one in all_of_it]))
    lines.append(_line("first update after", [f"{_first_update(one):.2f} s" for one in all_of_it]))
    if any(one.middle.phases("player_t_") for one in all_of_it):
        lines += ["", "rollout: of the ranks that play; all else of rank 0, which waits for them"]
    widest = max(max(one.rate.range, one.engine.range) for one in all_of_it)
    if widest > DISTURBED:
        lines += ["", f"note: repeats differ by {widest:.0%}; something else was running, or they were too short"]
    return lines


def record(found: Mapping[str, Throughput], gpu: bool) -> dict[str, object]:
    """All of it as JSON."""
    cases: dict[str, object] = {
        name: {
            "device": one.config.runtime.device,
            "plan": one.config.plan.kind,
            "milliseconds_per_iteration": {part: _milliseconds(one, part) for part in _PARTS},
            **one.record(),
        }
        for name, one in found.items()
    }
    return {"gpu": gpu, "cases": cases}


def _milliseconds(found: Throughput, part: str) -> float:
    phases = found.middle.phases("player_t_") if part == "rollout" else {}
    return sum((phases or found.middle.phases())[phase] for phase in _PARTS[part]) * 1e3


def _first_update(found: Throughput) -> float:
    return sorted(training.first_update for training in found.trainings)[len(found.trainings) // 2]


def _line(name: str, cells: list[str]) -> str:
    return f"{name:<24}" + "".join(f"{cell:>16}" for cell in cells)
