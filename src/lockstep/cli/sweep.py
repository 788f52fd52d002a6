"""`lockstep sweep`: train one experiment with several seeds and values, or search among values."""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lockstep import presets
from lockstep.cli.arguments import Arguments, is_on_cluster, whole_number
from lockstep.cli.benchmarks import print_line
from lockstep.config import Config
from lockstep.config.compose import dropped_fields, import_env_module, load
from lockstep.config.flags import parse_flags
from lockstep.messages import counted
from lockstep.processes.cores import usable_cores
from lockstep.run.folder import RunFolder
from lockstep.run.settings import RunConfig
from lockstep.runtime.rank_info import find_rank_info
from lockstep.sweep.values import SEED, Search, merge_values, read_over, read_search

if TYPE_CHECKING:
    from lockstep.sweep.member import Member
    from lockstep.sweep.sweep import Sweep

__all__ = ["SweepArguments", "main", "read"]

_COMMAND_FLAGS = (
    *("--config", "--job", "--jobs", "--on", "--out", "--over", "--prune", "--ranks", "--restarts", "--search"),
    "--trials",
)
_CLUSTERS = ("slurm", "kubernetes", "ray")
"""Values of `--on` besides `local`."""
Tree = Mapping[str, Mapping[str, object]]


class SweepArguments(NamedTuple):
    """Parsed command line of `lockstep sweep`."""

    args: argparse.Namespace
    """Flags of the command."""
    tree: Tree
    """Flags of the config."""
    over: dict[str, list[str]]
    """Values of `--over` by field."""
    spaces: dict[str, Search]
    """Search spaces of `--search` by field."""


def main(argv: Sequence[str]) -> int:
    """Train the runs that are not done yet, and print a table.

    Return the exit code: 0 if all runs are done, or submitted to a cluster that does not wait; 75 if the sweep or one of its runs was stopped; 1 if
    a run failed. Raises ValueError for bad input, before any run starts or any file is written, and RunInUse (code 6). The message is one line.
    """
    parsed = read(argv)
    args, tree, over, spaces = parsed
    rank_info = find_rank_info()
    if rank_info is not None:
        raise ValueError(
            f"sweep starts its own processes: use it without {rank_info.launcher}, with --jobs and --ranks"
        )

    from lockstep.cli.sweep_cluster import print_manifests
    from lockstep.experiment.resolve import cut_episodes
    from lockstep.run.stop import listen
    from lockstep.sweep.member import check_folder, is_done
    from lockstep.sweep.sweep import Sweep

    notes: dict[str, None] = {}  # in order, each once: `compose` is called for every run

    def compose(values: Mapping[str, str]) -> Config:
        flags = merge_values(tree, values)
        notes.update(dict.fromkeys(dropped_fields(preset, args.config, flags)))
        return load(preset, args.config, flags)

    preset = presets.read(args.preset) if args.preset else None
    tree = import_env_module(preset, args.config, tree, "env.id" in {*over, *spaces}, presets.example(args.preset))
    base = compose({})
    if base.run.store is not None:
        raise ValueError(f"run.store is {base.run.store!r}: the runs of a sweep can't be copied to object storage")
    folder = args.out or Path(RunConfig.folder) / f"{_folder_name(args.preset or base.env.id)}-sweep"
    sweep = Sweep(folder, args.preset, compose, args.ranks, 1, print_line, restarts=args.restarts, prune=args.prune)
    members = sweep.check(over, spaces)
    for member in [] if args.trials else members:
        check_folder(member)
    if warning := next(filter(None, (cut_episodes(member.config) for member in members)), None):
        notes[warning] = None  # printed once, not for every run
    if args.on == "kubernetes" and (unfinished := [member for member in members if not is_done(member)]):
        print_manifests(folder, unfinished, args, tree)
        for note in notes:
            print_line(note)
        return 0
    with sweep.opened():
        listen()
        for note in notes:
            print_line(note)
        return _run(sweep, members, parsed._replace(tree=tree), base, argv)


def _run(sweep: "Sweep", members: Sequence["Member"], parsed: SweepArguments, base: Config, argv: Sequence[str]) -> int:
    """Train the runs that are not done, here or on a cluster, and return the exit code. `members` are those of `Sweep.check`."""
    from lockstep.cli.sweep_cluster import on_ray, submit_to_slurm
    from lockstep.clusters.slurm import check_not_submitted
    from lockstep.run.environment import describe_environment
    from lockstep.sweep.member import is_done

    args, ranks, cores = parsed.args, max(member.ranks for member in members), usable_cores()
    unfinished = [member for member in members if not is_done(member)]
    if not args.trials:
        print_line(f"{counted(len(members), 'run')}, of which {len(members) - len(unfinished)} are done")
    if args.on == "slurm" and unfinished:
        job_id = submit_to_slurm(sweep, unfinished, args, parsed.tree)
        print(f"submitted job array {job_id} to Slurm; after its end, the same command prints the results")
        return 0
    check_not_submitted(RunFolder(sweep.folder))
    sweep.jobs = args.jobs or max(1, cores // ranks)
    is_on_ray = args.on == "ray" and (unfinished or args.trials)
    with on_ray(sweep, ranks, args, parsed.tree) if is_on_ray else nullcontext():
        where = "on Ray" if args.on == "ray" else f"on {counted(cores, 'core')}"
        if unfinished:
            print_line(f"{counted(sweep.jobs, 'job')} at a time, of {counted(ranks, 'rank')} each, {where}")
        if args.trials:
            _search(sweep, args, parsed.over, parsed.spaces, base)
        else:
            sweep.train(members)
    environment = {name: value for name, value in describe_environment(ranks).items() if name != "host"}
    return _finish(sweep, {"sweep": [*argv], **environment})


def read(argv: Sequence[str]) -> SweepArguments:
    """Parse and check the command line. Raises ValueError for bad input. The message is one line."""
    tree, rest = parse_flags(argv, _COMMAND_FLAGS)
    args = _parser().read(rest)
    over, spaces = read_over(args.over or []), read_search(args.search or [])
    for path in (*over, *spaces):
        section, _, field = path.partition(".")
        if field in tree.get(section, {}) or (path in over and path in spaces):
            raise ValueError(f"{path}: it is given as a flag and in --over or --search; remove one of the two")
    if not over and not spaces:
        raise ValueError("--over is missing: it names the values of a field, such as --over run.seed=1..5")
    if bool(spaces) != bool(args.trials):
        missing = "--trials, the number of trials," if spaces else "--search, the values to try,"
        raise ValueError(f"{missing} is missing; see lockstep sweep --help")
    if args.prune and not spaces:
        raise ValueError("--prune: it ends trials of a search early; --search, the values to try, is missing")
    other = next((path for path in over if path != SEED), None)
    if spaces and other:
        raise ValueError(f"--over {other}: with --search only {SEED} can be swept too; give {other} to --search")
    if is_on_cluster(args) and args.on != "ray" and spaces:
        raise ValueError(
            f"--on is {args.on!r}: a search starts runs when others have ended; use --on ray, or start it in a job"
        )
    for name in ("name", "folder"):
        if name in tree.get("run", {}):
            raise ValueError(f"run.{name}: a sweep names its runs itself; set its folder with --out")
    return SweepArguments(args, tree, over, spaces)


def _search(
    sweep: "Sweep",
    args: argparse.Namespace,
    over: Mapping[str, Sequence[str]],
    spaces: Mapping[str, Search],
    base: Config,
) -> None:
    from lockstep.experiment.same_experiment import experiment
    from lockstep.sweep.search import Trials

    rules = {"--search": sorted(args.search), "--over": sorted(args.over or []), **experiment(base)}
    rules |= {"--prune": True} if args.prune else {}
    trials = Trials(sweep.folder, spaces, base.run.seed, rules)
    print_line(f"{counted(args.trials, 'trial')}, of which {len(trials.finished())} are over")
    sweep.search(trials, over, args.trials)


def _finish(sweep: "Sweep", metadata: Mapping[str, object]) -> int:
    """Write and print the results, and return the exit code. `metadata` goes into the JSON tables."""
    from lockstep.processes.exit_codes import DONE, FAILED, STOPPED_BY_SIGNAL
    from lockstep.run.stop import asked_to_stop
    from lockstep.sweep.results import best, table

    failed = sweep.failed()
    if sweep.members:
        rows = sweep.write(metadata)
        print("\n".join(table(rows)))
        if len(rows) > 1 and (name := best(rows)):
            print(f"\nhighest median return: {name}")
    for line in failed:
        print(f"lockstep: {line}", file=sys.stderr)
    print(f"\n{sweep.folder}: runs.csv, summary.csv, and the runs: lockstep plot {sweep.folder}/runs/*")
    stopped = sweep.unfinished()
    if asked_to_stop() or stopped:
        names = f" before the end of {', '.join(stopped)}" if stopped and not asked_to_stop() else ""
        print(f"stopped{names}; run the same command again to continue")
        return STOPPED_BY_SIGNAL
    return FAILED if failed else DONE


def _folder_name(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.")


def _parser() -> Arguments:
    parser = Arguments(
        "sweep",
        "Trains one experiment with several seeds and values: all combinations, or a search. Run again, it keeps finished runs, resumes "
        "interrupted ones and trains missing ones. Takes every flag of `lockstep train` as well.",
    )
    parser.add_experiment()
    parser.add_argument(
        "--over",
        action="append",
        metavar="FIELD=V,V,…",
        help="values of a field, such as run.seed=1..5, ppo.learning_rate=1e-3,3e-4 or policy.hidden=[64,64],[128]; may be given several times",
    )
    parser.add_argument(
        "--jobs", type=whole_number(1), metavar="N", help="number of runs at a time (default: as many as fit the cores)"
    )
    parser.add_argument(
        "--ranks",
        type=whole_number(1),
        metavar="N",
        help="number of processes of every run (default: 1, or the fewest that --plan allows)",
    )
    parser.add_restarts()
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the sweep (default: runs/PRESET-sweep)")
    parser.add_cluster(_CLUSTERS)
    search = parser.add_argument_group("search")
    search.add_argument("--trials", type=whole_number(1), metavar="N", help="total number of trials; needs Optuna")
    search.add_argument(
        "--search",
        action="append",
        metavar="FIELD=SPACE",
        help="values to search: log(1e-5,1e-2), float(0.9,1), int(1,20), or a list of choices; the search maximizes the median return over the seeds of --over",
    )
    search.add_argument(
        "--prune",
        action="store_true",
        help="end a trial early if the return of its first seed is below the median of at least 5 earlier trials, at 30%%, 40%%, … or 90%% of the budget",
    )
    return parser
