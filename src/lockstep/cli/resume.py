"""`lockstep resume`: a run that was interrupted, or that shall go on for longer."""

import dataclasses
import os
from collections.abc import Sequence

from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.locate import locate
from lockstep.cli.start import start, under_launcher
from lockstep.config import VERSION, Config
from lockstep.config.decode import encode
from lockstep.run.folder import RunFolder

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Goes on, and returns the exit code. Raises ValueError in one line for bad input, before any process starts."""
    from lockstep.experiment import iterations, open_run, resolve

    own = _parser().read(argv)
    folder, config = open_run(locate(own.run))
    if own.total_steps is not None:
        config = _extend(folder, config, own.total_steps)
    found = folder.checkpoints()
    if own.iteration is not None and own.iteration not in (0, *found):
        raise ValueError(
            f"--iteration is {own.iteration}: {folder.path} has checkpoints of {', '.join(map(str, found)) or 'none'}"
        )
    resume_from = (found[-1] if found else 0) if own.iteration is None else own.iteration
    if under_launcher():
        from lockstep.cli.work import resume_under_launcher

        return resume_under_launcher(folder, config, resume_from)
    resolve(config, own.ranks or 1)
    if resume_from >= iterations(config):
        print(f"{folder.path} is complete: {resume_from} iterations; give a larger --total-steps to go on")
        return 0
    _check(folder, resume_from)
    return start(folder, own.ranks or 1, resume_from)


def _extend(folder: RunFolder, config: Config, total_steps: int) -> Config:
    if total_steps < config.run.total_steps:
        raise ValueError(
            f"--total-steps is {total_steps}: the run was made for {config.run.total_steps}, it can only grow"
        )
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, total_steps=total_steps))
    if os.environ.get("RANK", "0") == "0":  # under a launcher every rank comes here
        folder.rewrite({"version": VERSION, **encode(config)})
    return config


def _check(folder: RunFolder, resume_from: int) -> None:
    """Reads the checkpoint once before anything is started, so that a broken one is one line and not N."""
    if resume_from:
        from lockstep.experiment import load_agent

        load_agent(folder, resume_from)


def _parser() -> Arguments:
    parser = Arguments(
        "resume",
        "Goes on from the newest checkpoint to the same bits as if never interrupted, on any number of ranks that divides "
        "plan.shards.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    parser.add_argument("--ranks", type=whole_number(1), metavar="N", help="processes on this host (default 1)")
    parser.add_argument(
        "--iteration",
        type=whole_number(0),
        metavar="K",
        help="the checkpoint to go on from (default the newest; 0: the start)",
    )
    parser.add_argument(
        "--total-steps", type=whole_number(1), metavar="S", help="a larger budget, in environment steps"
    )
    return parser
