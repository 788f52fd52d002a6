"""The table of results in README.md: returns of the default settings, and of the preset for MuJoCo."""

from collections.abc import Sequence
from pathlib import Path

from comparison import UNTUNED
from markdown import interval, number
from table_results import Runs, read_results
from tasks import read_table

PRESET = "presets-mujoco"


def results_table(results: Path) -> str:
    """Return the Markdown of the table from the results in the folder `results`."""
    preset = read_results(read_table(PRESET), results).lockstep
    lines = [
        "| environment | steps | bar | the defaults | seeds | preset `mujoco` | seeds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for table in UNTUNED:
        for name, runs in read_results(read_table(table), results).lockstep.items():
            cells = [name, f"{runs.task.steps:,}", number(runs.task.bar), *_cells(runs), *_cells(preset.get(name))]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(runs: Runs | None) -> Sequence[str]:
    return ("–", "–") if runs is None else (interval(runs.estimate), str(len(runs.records)))
