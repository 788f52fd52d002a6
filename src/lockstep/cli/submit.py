"""Submission of a run to a cluster, for `--on` of `lockstep train` and `lockstep resume`."""

import dataclasses
import sys
from argparse import Namespace
from collections.abc import Mapping

from lockstep.algorithm.plan import default_ranks
from lockstep.clusters.submit import submit as submit_request
from lockstep.config import Config
from lockstep.config.compose import merged_tree
from lockstep.processes.exit_codes import DONE
from lockstep.run.folder import RunFolder
from lockstep.runtime.rank_info import RankInfo

__all__ = ["submit", "submit_existing"]


def submit(
    args: Namespace, flags: Mapping[str, Mapping[str, object]], config: Config, rank_info: RankInfo | None
) -> int:
    """Check the run, submit it, and return the exit code.

    `args` are the arguments of `train`, `flags` has its flags of the config, and `config` is the merged config. What depends on the host,
    such as the device, is chosen where the ranks run. Raises ValueError, in one line, if the run can't be trained.
    """
    from lockstep.clusters.request import Request
    from lockstep.experiment.hooks import import_hook
    from lockstep.experiment.resolve import resolve
    from lockstep.experiment.start import choose_sizes

    _check_launcher(args, rank_info)
    if args.resume and not config.run.name:
        raise ValueError("--resume needs --name, the name of the run that it starts or resumes")
    sizes = choose_sizes(config, args.ranks or default_ranks(config.plan, sys.maxsize))
    if config.env.per_rank is not None and len(sizes) > 1:
        raise ValueError(f"env.per_rank is {config.env.per_rank}: with --ranks MIN:MAX, set env.count instead")
    import_hook(config.run.hooks)
    request = Request(
        existing=None,
        preset=args.preset,
        fields=merged_tree(None, args.config, flags),
        resolved=resolve(config, sizes[0], None, args.preset),
        sizes=sizes,
        restarts=args.restarts,
        options=dict(args.job),
        resume=args.resume,
    )
    return submit_request(args.on, request)


def submit_existing(
    args: Namespace,
    flags: Mapping[str, Mapping[str, object]],
    folder: RunFolder,
    config: Config,
    rank_info: RankInfo | None,
) -> int:
    """Submit an existing run, which the caller has locked, and return the exit code.

    `args` are the arguments of `resume`, `flags` has its flags of the config, and `config` is that of the run with these flags. Raises
    ValueError, in one line, if the run can't be resumed.
    """
    from lockstep.clusters.request import Request
    from lockstep.experiment.start import choose_sizes, completion_text, is_complete

    _check_launcher(args, rank_info)
    if args.iteration is not None:
        raise ValueError(
            f"--iteration is {args.iteration}: with --on, every start resumes from the newest checkpoint; leave it out"
        )
    newest = max(folder.checkpoints(), default=0)
    if is_complete(folder, config, newest):
        print(completion_text(folder, config))
        return DONE
    sizes = choose_sizes(config, args.ranks or default_ranks(config.plan, sys.maxsize))
    fields = {section: dict(values) for section, values in flags.items()}
    if args.total_steps is not None:
        fields.setdefault("run", {})["total_steps"] = args.total_steps
    run = dataclasses.replace(config.run, folder=str(folder.path.parent), name=folder.path.name)
    request = Request(
        existing=folder,
        preset=None,
        fields=fields,
        resolved=dataclasses.replace(config, run=run),
        sizes=sizes,
        restarts=args.restarts,
        options=dict(args.job),
        resume=True,
    )
    return submit_request(args.on, request)


def _check_launcher(args: Namespace, rank_info: RankInfo | None) -> None:
    if rank_info is not None:
        raise ValueError(
            f"--on is {args.on!r}: {rank_info.launcher} started this process; start the command without it"
        )
