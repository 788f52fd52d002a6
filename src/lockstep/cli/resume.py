"""`lockstep resume`: resume a run that was interrupted, or extend a run."""

from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext

from lockstep.cli.arguments import Arguments, is_on_cluster, whole_number
from lockstep.cli.start import (
    announce_connecting,
    check_hook_of_run,
    import_env_module_of_run,
    listen_under_launcher,
    report_once,
    start,
)
from lockstep.clusters.submit import CLUSTERS
from lockstep.config.fields import RESUMABLE_FIELDS
from lockstep.config.flags import flag_of, parse_flags
from lockstep.processes.portable import restart_portable
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate
from lockstep.runtime.rank_info import RankInfo, find_rank_info

__all__ = ["main"]

_COMMAND_FLAGS = ("--iteration", "--job", "--on", "--ranks", "--restarts", "--total-steps")


def main(argv: Sequence[str]) -> int:
    """Resume the run and return the exit code. Raises ValueError for bad input, before any process starts."""
    rank_info = find_rank_info()
    with report_once(rank_info):
        tree, rest = parse_flags(argv, _COMMAND_FLAGS)
        args = _parser().read(rest)
        folder = RunFolder.open(locate(args.run))
    # Lock the run before its config and checkpoints are read: another process may be changing them. Under a launcher, rank 0
    # locks the run, in `resume_under_launcher`.
    with nullcontext() if rank_info is not None else folder.locked():
        return _resume(argv, folder, rank_info, tree, args)


def _resume(
    argv: Sequence[str],
    folder: RunFolder,
    rank_info: RankInfo | None,
    tree: dict[str, dict[str, object]],
    args: Namespace,
) -> int:
    with report_once(rank_info):
        from lockstep.clusters.slurm import check_not_submitted
        from lockstep.experiment.execute import open_run
        from lockstep.experiment.hooks import import_hook
        from lockstep.experiment.prepare_resume import prepare_resume
        from lockstep.experiment.start import (
            choose_sizes,
            completion_text,
            extended_by,
            resolve_resume,
        )
        from lockstep.experiment.storing import check_store_of_run

        _, config = open_run(folder.path)
        import_env_module_of_run(config, tree.get("env", {}).get("module"))
        check_hook_of_run(config, tree.get("run", {}))
        check_store_of_run(config.run, tree.get("run", {}))
        extended = extended_by(config, tree, args.total_steps)
        hook = import_hook(extended.run.hooks)
        if is_on_cluster(args):
            from lockstep.cli.submit import submit_existing

            return submit_existing(args, tree, folder, extended, rank_info)
        if config.runtime.bits == "portable" and (rank_info is not None or not args.restarts):
            restart_portable(["resume", *argv])  # this process becomes a rank
        listen_under_launcher(rank_info)
        resolved = resolve_resume(extended, rank_info, args.ranks)
        extended, rank_info, plan = resolved.config, resolved.rank_info, resolved.plan
    if rank_info is not None:
        announce_connecting(rank_info, extended)
        from lockstep.cli.train_rank import resume_under_launcher

        return resume_under_launcher(rank_info, folder, config, extended, plan, args.iteration, hook)
    check_not_submitted(folder)
    resume_from = prepare_resume(folder, config, extended, args.iteration, plan.ranks)
    if resume_from is None:
        print(completion_text(folder, extended))
        return 0
    sizes = choose_sizes(extended, args.ranks or plan.ranks)
    return start(folder, sizes, resume_from, extended.run.hooks, args.restarts)


def _parser() -> Arguments:
    fields = ", ".join(flag_of(path) for path in RESUMABLE_FIELDS)
    parser = Arguments(
        "resume",
        "Continues from the newest checkpoint to the same bits as if never interrupted, on any number of ranks and any --plan. Of the flags of "
        f"`lockstep train` it takes those that do not belong to the experiment: {fields}. "
        "--env.engine may change between gymnasium and gymnasium-async.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder, or its name in runs/")
    parser.add_ranks("one per core, at most one per shard, or the number that the plan requires")
    parser.add_cluster(CLUSTERS)
    parser.add_argument(
        "--iteration",
        type=whole_number(0),
        metavar="K",
        help="iteration of the checkpoint to resume from (default: the newest; 0: the start)",
    )
    parser.add_argument(
        "--total-steps",
        type=whole_number(1),
        metavar="S",
        help="a larger budget, in environment steps; schedules stretch to it, and envpool and ale begin new episodes when the run resumes",
    )
    return parser
