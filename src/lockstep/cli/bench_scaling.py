"""`lockstep bench scaling`: measure one experiment on several numbers of ranks."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.algorithm.plan import default_ranks
from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.benchmarks import (
    compose_config,
    describe_measurement,
    make_parser,
    parse_ranks,
    print_line,
    resolve_config,
)
from lockstep.config import Config
from lockstep.config.decode import encode
from lockstep.config.flags import parse_flags
from lockstep.processes.cores import usable_cores

if TYPE_CHECKING:
    from lockstep.bench.figures import Row
    from lockstep.bench.scaling import Case, Measured

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Measure, print a table and write the files of `--out`. Return the exit code. Raises ValueError for bad input."""
    parser = _parser()
    tree, rest = parse_flags(argv, parser.flags)
    args = parser.read(rest)
    config = compose_config(args, tree)
    _check(args, config)

    from lockstep.bench.figures import run_rows, summary_rows
    from lockstep.bench.scaling import Rules, measure
    from lockstep.bench.scaling_table import table
    from lockstep.run.tables import write_rows

    cases, cores = _cases(args, config), usable_cores()
    folder: Path | None = args.out
    metadata = {
        **describe_measurement(args, "scaling", max(case.ranks for case in cases)),
        "config": encode(cases[0].config),
    }
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--out is {folder}: it can't be made ({error.strerror})") from None
    oversubscribed = [case.ranks for case in cases if case.ranks > cores]
    if oversubscribed:
        print_line(
            f"note: {max(oversubscribed)} ranks share {cores} cores, so the result does not show how ranks scale"
        )

    def write_runs(so_far: "Sequence[Measured]") -> None:
        if folder is not None:  # written after every run, so that an interruption loses no finished run
            write_rows(folder, "per_run", run_rows(so_far, cores), metadata)

    rules = Rules(args.repeats, args.seconds, args.iterations, args.warmup, args.solve)
    measured = measure(cases, rules, folder and folder / "raw", print_line, write_runs)
    rows = summary_rows(run_rows(measured, cores))
    if folder is not None:
        write_rows(folder, "summary", rows, metadata)
        _draw(folder, rows, cases[0].config)
    print("\n".join(table(cases[0].config, rows, cores)))
    if folder is not None:
        print(f"\n{folder}: per_run.csv, summary.csv, scaling.png, raw/ and more")
    return 0


def _check(args: argparse.Namespace, config: Config) -> None:
    if config.env.per_rank is not None:
        raise ValueError(
            "env.per_rank can't be set for a scaling benchmark; set env.count, the number of environments of one rank"
        )
    if args.solve and config.run.solved_return is None:
        raise ValueError("--solve: it needs a target return; set --run.solved-return")
    if args.solve and args.iterations:
        raise ValueError(
            f"--iterations is {args.iterations}: with --solve, runs end when they reach the target return; remove one of the two flags"
        )
    if args.iterations and args.warmup and args.warmup >= args.iterations:
        raise ValueError(f"--warmup is {args.warmup}: it must be less than --iterations, which is {args.iterations}")
    if args.out is not None and args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise ValueError(f"--out is {args.out}: it must be a new or an empty folder")


def _cases(args: argparse.Namespace, config: Config) -> "list[Case]":
    """Return the cases, strong before weak, each kind by ascending number of ranks."""
    from lockstep.bench.scaling import KINDS, Case, for_ranks, weak

    ranks = args.ranks or sorted({1, max(2, default_ranks(config.plan, 2))})
    first = resolve_config(for_ranks(config, ranks[0]), ranks[0])[0]
    # all cases use the runtime, and so the choice of kernels, that is resolved for the fewest ranks
    config = dataclasses.replace(config, runtime=first.runtime)
    cases = []
    for kind in KINDS if args.kind == "both" else (args.kind,):
        for count in ranks:
            unscaled = for_ranks(config, count)
            case_config = resolve_config(unscaled if kind == "strong" else weak(unscaled, count), count)[0]
            cases.append(Case(kind, count, case_config))
    return cases


def _draw(folder: Path, rows: "Sequence[Row]", config: Config) -> None:
    from lockstep.report.scaling import draw_scaling

    env = config.env
    plans = dict.fromkeys(str(row["plan"]) for row in rows if row["ranks"] != 1)
    title = f"{env.id}, {env.count} environments × {config.rollout.steps} steps, plan {', '.join(plans) or config.plan.kind}"
    try:
        for suffix in ("png", "svg"):
            draw_scaling(rows, title, folder / f"scaling.{suffix}")
    except ValueError as error:  # a plot that fails must not lose the measurements
        print_line(f"lockstep: {error}")


def _parser() -> Arguments:
    parser = make_parser(
        "scaling",
        "Measures strong and weak scaling: the same experiment on several numbers of ranks, and one whose size grows with the ranks.",
    )
    parser.add_argument(
        "--ranks",
        type=parse_ranks,
        metavar="N,N,…",
        help="numbers of processes (default 1 and 2, or 1 and those that --plan names); 1 plays and trains, whatever the plan",
    )
    parser.add_argument(
        "--kind",
        choices=("strong", "weak", "both"),
        default="both",
        help="strong: the same experiment on every number of ranks; weak: env.count environments per playing rank (default: both)",
    )
    parser.add_argument(
        "--warmup",
        type=whole_number(0),
        metavar="K",
        help="number of warm-up iterations of every run, which are not measured (default: a tenth, at least 2)",
    )
    parser.add_argument(
        "--solve",
        action="store_true",
        help="train until run.solved_return is reached, for at most run.total_steps; every repeat has another seed",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="a new folder for tables (CSV, JSON), plots and the metrics of every run",
    )
    return parser
