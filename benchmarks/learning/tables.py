"""Write the tables of docs/learning.md and README.md, between their markers, and their figures from the stored results.

    python benchmarks/learning/tables.py [--results DIR] [--page FILE] [--readme FILE]

It needs matplotlib, and no run.
"""

import argparse
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from aggregate import estimate
from comparison import UNTUNED, comparison
from figures import PUBLISHED, draw_curves, draw_profiles
from markdown import interval, number
from readme import results_table
from records import RESULTS
from table_results import Runs, TableResults, read_results
from tasks import Table, read_table, table_names
from variants import variant_rows

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "docs" / "learning.md", ROOT / "README.md"


def section(table: Table, folder: Path, page: Path) -> str:
    """Return the Markdown of a table from the results in `folder`, and draw its figures into the folder `learning/` beside the page."""
    results = read_results(table, folder)
    lines = [f"{table.about} Bars: {table.bars}", ""]
    if any(task.maximum for task in table.tasks.values()):
        lines += [
            "† This bar is the maximum of the mean test return over training, as its source reports it. Results here never are:",
            "they are returns after training.",
            "",
        ]
    if table.variants:
        return "\n".join([*lines, *variant_rows(table, folder)])
    curves, profiles = (page.parent / "learning" / f"{table.name}-{kind}.svg" for kind in ("curves", "profiles"))
    if not results.lockstep:
        return "\n".join([*lines, *_definitions(results), "", *_unfinished(results, curves)])
    lines += [*_returns(results), "", *_steps(results), ""]
    draw_curves(results.lockstep, results.sb3, curves)
    lines += [*_published(results.lockstep), f"![Learning curves of {table.name}](learning/{curves.name})"]
    if pooled := results.pooled("lockstep"):
        draw_profiles({"lockstep": pooled, "sb3": results.pooled("sb3")}, profiles)
        programs = [f"lockstep {interval(estimate(pooled))}"]
        if baseline := results.pooled("sb3"):
            programs.append(f"Stable-Baselines3 {interval(estimate(baseline))}")
        lines += ["", f"Interquartile mean of the normalized scores over all tasks: {', '.join(programs)}.", ""]
        lines.append(f"![Performance profiles of {table.name}](learning/{profiles.name})")
    return "\n".join(lines)


def _definitions(results: TableResults) -> list[str]:
    rows = [
        f"| {task.name} | {task.steps:,} | {task.seeds} | {_bar(task.bar, task.maximum)} | {number(task.wanted)} |"
        for task in results.table.tasks.values()
    ]
    return ["| task | steps | seeds | bar | wanted |", "| --- | ---: | ---: | ---: | ---: |", *rows]


def _unfinished(results: TableResults, curves: Path) -> list[str]:
    """Return lines about runs that are not finished, and draw their learning curves."""
    if not results.unfinished:
        return ["No results yet."]
    draw_curves(results.unfinished, {}, curves)
    lines = ["No run is finished. So far:", ""]
    for name, runs in results.unfinished.items():
        for record in runs.records:
            steps, mean = (values[-1] for values in record["curve"].values())
            lines.append(
                f"- {name}, seed {record['seed']}: {record['steps']:,} of {runs.task.steps:,} steps. The mean return of the training episodes of the last "
                f"interval of the curve, which ends at {steps:,} steps, is {number(mean)}."
            )
    lines += ["", *_published(results.unfinished)]
    return [*lines, f"![Learning curves of {results.table.name}](learning/{curves.name})"]


def _published(tasks: Iterable[str]) -> list[str]:
    """Return lines about the published curves of tasks, which end with an empty line."""
    found = [(name, PUBLISHED[name]) for name in tasks if name in PUBLISHED]
    lines = [f"{name}: the curve “{published['name']}” is from {published['source']}." for name, published in found]
    return [line for text in lines for line in (text, "")]


def _returns(results: TableResults) -> list[str]:
    """Return the table of returns after training."""
    lines = [
        "| task | steps | seeds | bar | wanted | IQM [95%] | mean | median | sampled IQM | normalized | SB3 IQM [95%] |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | --- | ---: | --- |",
    ]
    for name, runs in results.lockstep.items():
        task, scores = runs.task, runs.scores()
        baseline = results.sb3.get(name)
        cells = [
            name,
            f"{task.steps:,}",
            str(len(scores)),
            _bar(task.bar, task.maximum),
            number(task.wanted),
            f"**{interval(runs.estimate)}**" if runs.estimate.value >= task.wanted else interval(runs.estimate),
            number(statistics.fmean(scores)),
            number(statistics.median(scores)),
            interval(estimate([runs.scores("sampled")])),
            f"{estimate([runs.normalized]).value:.2f}",
            interval(baseline.estimate) if baseline else "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _steps(results: TableResults) -> list[str]:
    """Return the table of steps to the wanted return."""
    lines = [
        "| task | threshold | runs that reached it | steps | SB3: runs | SB3: steps |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in results.lockstep.items():
        baseline = results.sb3.get(name)
        cells = [name, number(runs.task.wanted), *_threshold(runs), *(_threshold(baseline) if baseline else ["–", "–"])]
        lines.append(f"| {' | '.join(cells)} |")
    processors = sorted({record["processor"] for runs in results.lockstep.values() for record in runs.records})
    return [*lines, "", f"Processor: {', '.join(processors)}."]


def _threshold(runs: Runs) -> list[str]:
    """Return the number of runs that reached the wanted return, and the median of the steps over all runs."""
    steps = runs.steps_to_threshold
    reached, median = sum(map(math.isfinite, steps)), statistics.median(steps)
    return [f"{reached} of {len(steps)}", f"{median:,.0f}" if math.isfinite(median) else "–"]


def _bar(bar: float, maximum: bool) -> str:
    return f"{number(bar)}{'†' if maximum else ''}"


def fill(text: str, sections: dict[str, str]) -> str:
    """Return the page with the text between the markers of each table replaced. Raises ValueError for missing markers."""
    for name, content in sections.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"the page has no markers {begin} and {end}")
        text = pattern.sub(lambda _, block=f"{begin}\n\n{content}\n\n{end}": block, text)
    return text


def main(argv: Sequence[str] | None = None) -> None:
    """Write the pages and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--readme", type=Path, default=README)
    arguments = parser.parse_args(argv)
    sections = {name: section(read_table(name), arguments.results, arguments.page) for name in table_names()}
    untuned = [read_results(read_table(name), arguments.results) for name in UNTUNED]
    figure = arguments.page.parent / "learning" / "comparison-profiles.svg"
    sections["comparison"] = "\n".join(comparison(untuned, figure))
    results = {"results": results_table(arguments.results)}
    for path, content in ((arguments.page, sections), (arguments.readme, results)):
        path.write_text(fill(path.read_text(encoding="utf-8"), content), encoding="utf-8")


if __name__ == "__main__":
    main()
