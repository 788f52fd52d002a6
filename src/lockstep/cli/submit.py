"""Submission of a run to a cluster, for `lockstep train --on`."""

import sys
from argparse import Namespace
from collections.abc import Mapping

from lockstep.algorithm.plan import default_ranks
from lockstep.clusters.submit import submit as submit_request
from lockstep.config import Config
from lockstep.config.compose import merged_tree
from lockstep.runtime.rank_info import RankInfo

__all__ = ["submit"]


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

    if rank_info is not None:
        raise ValueError(
            f"--on is {args.on!r}: {rank_info.launcher} started this process; start the command without it"
        )
    if args.resume and not config.run.name:
        raise ValueError("--resume needs --name, the name of the run that it starts or resumes")
    sizes = choose_sizes(config, args.ranks or default_ranks(config.plan, sys.maxsize))
    if config.env.per_rank is not None and len(sizes) > 1:
        raise ValueError(f"env.per_rank is {config.env.per_rank}: with --ranks MIN:MAX, set env.count instead")
    import_hook(config.run.hooks)
    request = Request(
        preset=args.preset,
        fields=merged_tree(None, args.config, flags),
        resolved=resolve(config, sizes[0], None, args.preset),
        sizes=sizes,
        restarts=args.restarts,
        options=dict(args.job),
        resume=args.resume,
    )
    return submit_request(args.on, request)
