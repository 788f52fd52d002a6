"""Write the table of docs/defaults.md, between its markers, from search.json.

    python benchmarks/learning/search.py

search.json has one line for each run of the search for the default settings. The command of a run is `lockstep train --env TASK
--ranks 1 --seed SEED --total-steps STEPS`, with `base` and `settings` as flags. The settings of `runs_large` are relative to the first row of
the table with `ppo.learning_rate_kl none` and `ppo.gamma 0.99`.
"""

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from aggregate import normalized
from markdown import number
from tables import fill
from tasks import read_table

SEARCH = Path(__file__).with_name("search.json")
PAGE = Path(__file__).parents[2] / "docs" / "defaults.md"
MAIN = ("default-classic", "default-mujoco", "presets-mujoco")
"""Tables whose bars are the 1 of normalized scores."""

LOG_STD = "policy.log_std"
COMPONENTS = {"Reacher-v5": 2, "Hopper-v5": 3, "HalfCheetah-v5": 6}
"""Components of an action, in tasks with more than one."""
RULES = {"-0.347 -0.549 -0.896": "-ln(A) / 2", "-0.693 -1.099 -1.792": "-ln(A)"}
"""Rules for the initial log standard deviation, by its values for 2, 3 and 6 components."""


def rows(search: dict[str, Any], bars: dict[str, float], random: dict[str, float]) -> list[str]:
    """Return the Markdown table: one row for each combination of settings, the best one first, incomplete ones last."""
    runs: dict[frozenset[str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in search["runs"]:
        settings = run["settings"] | (
            {LOG_STD: _log_std(run["task"], run["settings"][LOG_STD])} if LOG_STD in run["settings"] else {}
        )
        changed = frozenset(f"`{name.partition('.')[2]} {value}`" for name, value in settings.items())
        runs[changed][run["task"]].append(run["evaluation"])
    tasks, lines = list(search["steps"]), []
    for changed, by_task in runs.items():
        if any(changed | {f"`log_std {rule}`"} in runs for rule in RULES.values()) and len(by_task) < len(tasks):
            continue  # the row with the rule has these runs too
        rule = next((setting for setting in changed if "ln(A)" in setting), None)
        if rule:  # the rule changes nothing in tasks with discrete actions or one component
            others = runs.get(changed - {rule}, {})
            by_task = {task: others[task] for task in tasks if task in others and task not in COMPONENTS} | by_task
        means = {task: fmean(by_task[task]) for task in tasks if by_task.get(task)}
        scores = [normalized(mean, random[task], bars[task]) for task, mean in means.items()]
        cells = [f"{number(means[task])} ({len(by_task[task])})" if task in means else "–" for task in tasks]
        whole = f"{fmean(scores):.2f}" if len(scores) == len(tasks) else "–"
        if len(scores) > 2:
            lines.append(
                (
                    len(scores),
                    fmean(scores),
                    f"| {', '.join(sorted(changed)) or 'base'} | {whole} | {' | '.join(cells)} |",
                )
            )
    head = [f"| settings | score | {' | '.join(tasks)} |", f"| --- | ---: | {' | '.join('---:' for _ in tasks)} |"]
    return [*head, *(line for _, _, line in sorted(lines, reverse=True))]


def large_rows(search: dict[str, Any]) -> list[str]:
    """Return the Markdown table of the runs on the tasks with large inputs or long horizons: a row for each combination of settings."""
    runs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in search["runs_large"]:
        changed = ", ".join(f"`{name.partition('.')[2]} {value}`" for name, value in sorted(run["settings"].items()))
        runs[changed][run["task"]].append(run["evaluation"])
    tasks = list(search["steps_large"])
    head = [f"| settings | {' | '.join(tasks)} |", f"| --- | {' | '.join('---:' for _ in tasks)} |"]
    cells = {
        changed: [", ".join(map(number, by_task[task])) if by_task.get(task) else "–" for task in tasks]
        for changed, by_task in sorted(runs.items())
    }
    return [*head, *(f"| {changed or 'none'} | {' | '.join(values)} |" for changed, values in cells.items())]


def _log_std(task: str, value: str) -> str:
    """Return the rule that a value follows, where it depends on the number of components of an action."""
    return next((rule for values, rule in RULES.items() if task in COMPONENTS and value in values.split()), value)


def main() -> None:
    """Write the table into the page."""
    search = json.loads(SEARCH.read_text(encoding="utf-8"))
    bars = {task.name: task.bar for table in map(read_table, MAIN) for task in table.tasks.values()}
    random = json.loads(SEARCH.with_name("random_scores.json").read_text(encoding="utf-8"))
    table = "\n".join(rows(search, bars, {task: entry["mean"] for task, entry in random.items()}))
    sections = {"search": table, "large": "\n".join(large_rows(search))}
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), sections), encoding="utf-8")


if __name__ == "__main__":
    main()
