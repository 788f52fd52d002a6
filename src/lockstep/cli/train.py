"""`lockstep train`: train an agent in a new run."""

import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep import presets
from lockstep.cli.arguments import Arguments, is_on_cluster
from lockstep.cli.start import announce_connecting, listen_under_launcher, report_once, start
from lockstep.clusters.submit import CLUSTERS
from lockstep.config.compose import dropped_fields, import_env_module, load
from lockstep.config.flags import parse_flags
from lockstep.processes.portable import restart_portable
from lockstep.run.folder import RunFolder
from lockstep.runtime.rank_info import find_rank_info

__all__ = ["main"]

_COMMAND_FLAGS = ("--config", "--job", "--on", "--ranks", "--restarts", "--resume")


def main(argv: Sequence[str]) -> int:
    """Train and return the exit code.

    Raises ValueError for bad input, before any process starts. The message is one line.
    """
    parser = _parser()
    if {"-h", "--help"} & set(argv):
        from lockstep.config.help import help_text

        preset = next((presets.read(word) for word in argv if word in presets.names()), None)
        print(help_text("train", load(preset, None, {}), parser.format_help()))
        return 0
    rank_info = find_rank_info()
    with report_once(rank_info):
        tree, rest = parse_flags(argv, _COMMAND_FLAGS)
        args = parser.read(rest)
        preset = presets.read(args.preset) if args.preset else None
        flags = import_env_module(preset, args.config, tree, example=presets.example(args.preset))
        config = load(preset, args.config, flags)
        if is_on_cluster(args):
            from lockstep.cli.submit import submit

            return submit(args, flags, config, rank_info)
        if config.runtime.bits == "portable" and (rank_info is not None or not args.restarts):
            restart_portable(["train", *argv])  # this process becomes a rank
        listen_under_launcher(rank_info)
        from lockstep.clusters.slurm import check_not_submitted
        from lockstep.experiment.hooks import import_hook
        from lockstep.experiment.prepare_run import ResolvedRun, prepare_run
        from lockstep.experiment.resolve import resolve
        from lockstep.experiment.start import choose_sizes, completion_text, resolve_start, start_warnings

        hook = import_hook(config.run.hooks)
        resolved_start = resolve_start(config, rank_info, args.ranks)
        rank_info, plan = resolved_start.rank_info, resolved_start.plan
        resolved_config = resolve(resolved_start.config, plan.ranks, plan, args.preset)
        run = ResolvedRun(config, resolved_config, plan, args.preset, args.resume)
        if rank_info is None or rank_info.rank == 0:
            for line in (
                *dropped_fields(preset, args.config, flags),
                *start_warnings(resolved_start.config, resolved_config),
            ):
                print(line, file=sys.stderr)
    if rank_info is not None:
        announce_connecting(rank_info, resolved_config)
        from lockstep.cli.train_rank import train_under_launcher

        return train_under_launcher(rank_info, run, hook)
    if config.run.name is not None:
        check_not_submitted(RunFolder(Path(config.run.folder) / config.run.name))
    folder, resolved_config, resume_from = prepare_run(run)
    try:
        if resume_from is None:
            print(completion_text(folder, resolved_config))
            return 0
        sizes = choose_sizes(resolved_config, args.ranks or plan.ranks)
        return start(folder, sizes, resume_from, config.run.hooks, args.restarts)
    finally:
        folder.unlock()


def _parser() -> Arguments:
    parser = Arguments(
        "train",
        "Trains an agent. The config comes from a preset, a file and flags; flags override the file, which overrides the preset.",
    )
    parser.add_experiment()
    parser.add_ranks(
        "1 without plan.shards; with it, one per core, at most one per shard, or the number that --plan requires; with plan.shards set, "
        "the result does not depend on it"
    )
    parser.add_cluster(CLUSTERS)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="if the run of this --name exists, continue from its newest checkpoint, or end with code 0 if it is complete: the same command then "
        "starts a run and, repeated by a scheduler, resumes it. Refused if the run has another config",
    )
    return parser
