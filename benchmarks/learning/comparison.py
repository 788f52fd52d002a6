"""The section of docs/learning.md that compares the default settings with Stable-Baselines3 over all tasks."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from aggregate import balanced, difference, estimate
from figures import draw_profiles
from markdown import interval
from table_results import Runs, TableResults, compared

UNTUNED = ("default-classic", "default-mujoco")
"""Tables whose settings are the defaults of lockstep."""


def comparison(results: Sequence[TableResults], figure: Path) -> list[str]:
    """Return the Markdown of the comparison over the tasks that both programs have trained, and draw the performance profiles.

    All tasks count equally: each has as many seeds of a program as the task with the fewest.
    """
    runs = compared(results)
    if not runs:
        return ["No results yet."]
    ours, theirs = (balanced([pair[place].normalized for pair in runs.values()]) for place in (0, 1))
    change = difference(ours, theirs)
    lines = [
        f"Tasks: {', '.join(runs)}.",
        "",
        "| program | settings | seeds | IQM of all [95%] |",
        "| --- | --- | ---: | --- |",
        f"| lockstep | the defaults, for all tasks | {len(ours[0])} | {interval(estimate(ours))} |",
        f"| Stable-Baselines3 | tuned for each task (rl-baselines3-zoo) | {len(theirs[0])} | {interval(estimate(theirs))} |",
        f"| difference | | | {interval(change)} |",
        "",
        "| task | lockstep: normalized IQM | SB3: normalized IQM | lockstep: steps to threshold | SB3: steps to threshold |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(_row(name, *pair) for name, pair in runs.items()),
        "",
    ]
    draw_profiles({"lockstep": ours, "sb3": theirs}, figure)
    return [*lines, f"![Performance profiles of both programs](learning/{figure.name})"]


def _row(name: str, ours: Runs, theirs: Runs) -> str:
    scores = [f"{estimate([runs.normalized]).value:.2f}" for runs in (ours, theirs)]
    steps = [statistics.median(runs.steps_to_threshold) for runs in (ours, theirs)]
    cells = [name, *scores, *("–" if math.isinf(median) else f"{median:,.0f}" for median in steps)]
    return f"| {' | '.join(cells)} |"
