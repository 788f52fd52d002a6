"""`lockstep bench scaling`: one experiment on several numbers of ranks."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.algorithm.plan import default_ranks
from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.benchmarks import composed, machine, parser_of, resolved, tell
from lockstep.config import Config
from lockstep.config.decode import encode
from lockstep.config.flags import parse_flags
from lockstep.group.memory import usable_cores

if TYPE_CHECKING:
    from lockstep.bench.figures import Row
    from lockstep.bench.scaling import Case, Measured

__all__ = ["main"]

_OWN = ("--config", "--ranks", "--repeats", "--seconds", "--iterations", "--warmup", "--kind", "--solve", "--out")


def main(argv: Sequence[str]) -> int:
    """Measures, prints a table and fills `--out`. Raises ValueError in one line, before anything is measured."""
    tree, rest = parse_flags(argv, _OWN)
    own = _parser().read(rest)
    config = composed(own, tree)
    _check(own, config)

    from lockstep.bench.figures import run_rows, summary_rows
    from lockstep.bench.scaling import Rules, measure
    from lockstep.bench.scaling_table import table

    cases, cores = _cases(own, config), usable_cores()
    folder: Path | None = own.out
    about = {**machine(own, "scaling", max(case.ranks for case in cases)), "config": encode(cases[0].config)}
    if folder is not None:
        _make(folder)
    crowded = [case.ranks for case in cases if case.ranks > cores]
    if crowded:
        tell(
            f"note: {max(crowded)} ranks are more than the {cores} cores here: they take turns, and don't show how ranks scale"
        )

    def found(so_far: "Sequence[Measured]") -> None:
        if folder is not None:  # after every run, so that those before an interruption are not lost
            _write(folder, "per_run", run_rows(so_far, cores), about)

    rules = Rules(own.repeats, own.seconds, own.iterations, own.warmup, own.solve)
    measured = measure(cases, rules, folder and folder / "raw", tell, found)
    rows = summary_rows(run_rows(measured, cores))
    if folder is not None:
        _write(folder, "summary", rows, about)
        _draw(folder, rows, cases[0].config)
    print("\n".join(table(cases[0].config, rows, cores)))
    if folder is not None:
        print(f"\n{folder}: per_run.csv, summary.csv, scaling.png, raw/ and more")
    return 0


def _check(own: argparse.Namespace, config: Config) -> None:
    if config.env.per_rank is not None:
        raise ValueError("env.per_rank: scaling sets it itself; give env.count, the environments of one rank")
    if own.solve and config.run.solved_return is None:
        raise ValueError("--solve: run.solved_return is none; give the return to reach with --run.solved-return")
    if own.solve and own.iterations:
        raise ValueError(
            f"--iterations is {own.iterations}: with --solve runs go on until their return is reached; leave one out"
        )
    if own.iterations and own.warmup and own.warmup >= own.iterations:
        raise ValueError(f"--warmup is {own.warmup}: it must be less than --iterations, which is {own.iterations}")
    if own.out is not None and own.out.exists() and (not own.out.is_dir() or any(own.out.iterdir())):
        raise ValueError(f"--out is {own.out}: it must be a new or an empty folder")


def _cases(own: argparse.Namespace, config: Config) -> "list[Case]":
    """Strong cases before weak ones, by ranks. Raises ValueError for numbers of ranks that can't carry the experiment."""
    from lockstep.bench.scaling import KINDS, Case, for_ranks, weak

    ranks = own.ranks or sorted({1, max(2, default_ranks(config.plan, 2))})
    first = resolved(for_ranks(config, ranks[0]), ranks[0])[0]
    # what is decided for the fewest ranks, to compile or not, holds for all
    config = dataclasses.replace(config, runtime=first.runtime)
    cases = []
    for kind in KINDS if own.kind == "both" else (own.kind,):
        for count in ranks:
            carried = for_ranks(config, count)
            whole = resolved(carried if kind == "strong" else weak(carried, count), count)[0]
            cases.append(Case(kind, count, whole))
    return cases


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out is {folder}: it can't be made ({error.strerror})") from None


def _write(folder: Path, name: str, rows: "Sequence[Row]", about: Mapping[str, object]) -> None:
    from lockstep.run.tables import write_rows

    write_rows(folder, name, rows, about)


def _draw(folder: Path, rows: "Sequence[Row]", config: Config) -> None:
    from lockstep.report.scaling import draw_scaling

    env = config.env
    plans = dict.fromkeys(str(row["plan"]) for row in rows if row["ranks"] != 1)
    title = f"{env.id}, {env.count} environments × {config.rollout.steps} steps, plan {', '.join(plans) or config.plan.kind}"
    try:
        for ending in ("png", "svg"):
            draw_scaling(rows, title, folder / f"scaling.{ending}")
    except ValueError as error:  # what was measured is worth more than its picture
        tell(f"lockstep: {error}")


def _parser() -> Arguments:
    parser = parser_of(
        "scaling", "Trains an experiment on several numbers of ranks, and one that grows with the ranks."
    )
    parser.add_argument(
        "--ranks",
        type=_ranks,
        metavar="N,N,…",
        help="numbers of processes (default 1 and 2, or 1 and those that --plan names); 1 plays and trains, whatever the plan",
    )
    parser.add_argument(
        "--kind",
        choices=("strong", "weak", "both"),
        default="both",
        help="strong: the same experiment on all; weak: env.count environments per rank that plays (default both)",
    )
    parser.add_argument(
        "--warmup",
        type=whole_number(0),
        metavar="K",
        help="iterations at the beginning of every run that don't count (default a tenth, at least 2)",
    )
    parser.add_argument(
        "--solve",
        action="store_true",
        help="go on until run.solved_return is reached, or run.total_steps are spent; repeats differ in their seed",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="a new folder for tables (CSV, JSON), plots and the metrics of every run",
    )
    return parser


def _ranks(text: str) -> list[int]:
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise argparse.ArgumentTypeError(f"is {text!r}: it must be whole numbers from 1 on, such as 1,2,4")
    return numbers
