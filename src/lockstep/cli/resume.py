"""`lockstep resume`: a run that was interrupted, or that shall go on for longer."""

import dataclasses
from collections.abc import Mapping, Sequence

from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.locate import locate
from lockstep.cli.start import import_again, listen_under, settle, start, told_once
from lockstep.config import Config
from lockstep.config.decode import decode
from lockstep.config.flags import parse_flags
from lockstep.run.folder import RunFolder
from lockstep.runtime.place import find_place

__all__ = ["main"]

_CARRYING = (
    *(f"plan.{field}" for field in ("kind", "players", "trainers")),
    *(f"runtime.{field}" for field in ("kind", "device", "player_device", "backend", "rendezvous", "timeout")),
    "run.progress",
    "env.module",
)
"""What does not belong to the experiment. (Devices do, as far as they round differently: a host may have no other.)"""


def main(argv: Sequence[str]) -> int:
    """Goes on, and returns the exit code. Raises ValueError in one line for bad input, before any process starts."""
    place = find_place()
    with told_once(place):
        tree, rest = parse_flags(argv, ("--ranks", "--iteration", "--total-steps"))
        own = _parser().read(rest)
        from lockstep.experiment import check_checkpoint, iterations, open_run, resolve, save_config

        folder, config = open_run(locate(own.run))
        import_again(config, tree.get("env", {}).get("module"))
        extended = _carried_by(config, tree)
        if own.total_steps is not None:
            extended = _extended(extended, own.total_steps)
        listen_under(place)
        extended, place, ranks = settle(extended, place, own.ranks)
        resume_from = _start_of(folder, own.iteration)
        if resolve(extended, ranks).runtime.compile != extended.runtime.compile:
            raise ValueError(
                "runtime.compile is 'on' in this run: there is no C++ compiler here; install g++, or let CXX name one"
            )
    if resume_from >= iterations(extended):
        if place is None or place.rank == 0:
            print(f"{folder.path} is complete: {resume_from} iterations; give a larger --total-steps to go on")
        return 0
    if place is not None:
        from lockstep.cli.work import resume_under_launcher

        return resume_under_launcher(place, folder, extended, resume_from)
    if resume_from:
        check_checkpoint(folder, extended, resume_from)
    folder.lock()  # before anything is changed: a run that is in use stays as it is
    if extended != config:
        save_config(folder, extended)
    return start(folder, ranks, resume_from)


def _carried_by(config: Config, tree: Mapping[str, Mapping[str, object]]) -> Config:
    """The config with other ranks to carry it. Raises ValueError for a field that would change the experiment."""
    given = [f"{section}.{field}" for section, fields in tree.items() for field in fields]
    fixed = next((name for name in given if name not in _CARRYING), None)
    if fixed:
        raise ValueError(
            f"--{fixed.replace('_', '-')}: it is part of the experiment and stays as it is; resume takes {', '.join(_CARRYING)}"
        )
    named = {} if "plan.kind" not in given else {"players": None, "trainers": None}
    plan = named | dict(tree.get("plan", {}))
    return decode({**tree, **({"plan": plan} if plan else {})}, config)


def _start_of(folder: RunFolder, iteration: int | None) -> int:
    """The iteration to go on from: `iteration` if it has a checkpoint, None for the newest; 0 is the start."""
    found = folder.checkpoints()
    if iteration is not None and iteration not in (0, *found):
        raise ValueError(
            f"--iteration is {iteration}: {folder.path} has checkpoints of {', '.join(map(str, found)) or 'none'}"
        )
    return (found[-1] if found else 0) if iteration is None else iteration


def _extended(config: Config, total_steps: int) -> Config:
    if total_steps < config.run.total_steps:
        raise ValueError(
            f"--total-steps is {total_steps}: the run was made for {config.run.total_steps}, it can only grow"
        )
    return dataclasses.replace(config, run=dataclasses.replace(config.run, total_steps=total_steps))


def _parser() -> Arguments:
    parser = Arguments(
        "resume",
        "Goes on from the newest checkpoint to the same bits as if never interrupted, on any number of ranks and any --plan.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    parser.add_argument(
        "--ranks",
        type=whole_number(1),
        metavar="N",
        help="processes on this host (default: one per core as far as there are shards, or what the plan asks for)",
    )
    parser.add_argument(
        "--iteration",
        type=whole_number(0),
        metavar="K",
        help="the checkpoint to go on from (default the newest; 0: the start)",
    )
    parser.add_argument(
        "--total-steps",
        type=whole_number(1),
        metavar="S",
        help="a larger budget, in environment steps; schedules stretch to it, and envpool and ale begin new episodes where it goes on",
    )
    return parser
