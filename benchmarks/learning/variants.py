"""The section of docs/learning.md about a table with variants: what each choice is worth."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aggregate import Estimate, difference, estimate
from markdown import interval, number
from table_results import TableResults, read_results
from tasks import Table


def variant_rows(table: Table, results: Path) -> list[str]:
    """Return the Markdown table of the variants that have results for all tasks, the best one first.

    Scores are the interquartile means of normalized scores. A difference is that of the variant and the table, from
    equally many seeds of each task.
    """
    base = read_results(replace(table, variants={}), results)
    if not base.pooled("lockstep"):
        return ["No results yet."]
    rows: list[tuple[float, str]] = []
    for name, variant in table.variants.items():
        other = read_results(replace(variant, bars=table.bars), results)
        if scores := other.pooled("lockstep"):
            change = difference(scores, base.pooled("lockstep"))
            rows.append((change.value, _row(f"`{name}`: {variant.about}", other, scores, interval(change))))
    lines = [
        f"| settings | seeds | IQM of all [95%] | difference [95%] | {' | '.join(table.tasks)} |",
        f"| --- | ---: | --- | --- | {' | '.join('---:' for _ in table.tasks)} |",
        _row("the default", base, base.pooled("lockstep"), "–"),
    ]
    return [*lines, *(row for _, row in sorted(rows, reverse=True))]


def _row(name: str, results: TableResults, scores: Sequence[Sequence[float]], change: str) -> str:
    whole: Estimate = estimate(scores)
    means = [number(results.lockstep[task].estimate.value) for task in results.table.tasks]
    return f"| {name} | {min(map(len, scores))} | {interval(whole)} | {change} | {' | '.join(means)} |"
