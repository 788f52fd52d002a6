"""Starting and resuming runs, for the command line and the Python API."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.algorithm.plan import Plan, default_ranks
from lockstep.compiling.library import interpreter_problem
from lockstep.config import Config
from lockstep.config.decode import decode
from lockstep.config.fields import RESUMABLE_FIELDS
from lockstep.envs.catalog import SAME_EPISODES
from lockstep.experiment.execute import execute
from lockstep.experiment.resolve import compiles, cut_episodes, fastest_engine, iterations, resolve
from lockstep.messages import counted
from lockstep.processes.cores import usable_cores
from lockstep.processes.exit_codes import (
    BAD_INPUT,
    DONE,
    FAILED,
    NON_FINITE,
    RANK_LOST,
    REPLICAS_DIFFER,
    STOPPED_BY_SIGNAL,
)
from lockstep.run.folder import RunFolder
from lockstep.runtime.checks import check_runtime, resolve_devices
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.rendezvous import choose_rendezvous

if TYPE_CHECKING:
    from lockstep.experiment.hooks import Hook
    from lockstep.run.run import TrainingRun

__all__ = [
    "ResolvedStart",
    "announce_start",
    "check_kernels",
    "choose_sizes",
    "completion_text",
    "exit_codes_by_error",
    "extended_by",
    "is_complete",
    "raise_for_exit_code",
    "resolve_resume",
    "resolve_start",
    "run_rank",
    "start_warnings",
]


@dataclass(frozen=True)
class ResolvedStart:
    """A start that this host and its launcher can provide."""

    config: Config
    """The config, with resolved devices."""
    rank_info: RankInfo | None
    """This rank, with its rendezvous; None if no other launcher started it."""
    plan: Plan

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.plan.ranks


def choose_sizes(config: Config, ranks: int | range | None) -> list[int]:
    """Return the numbers of ranks in `ranks` that fit the plan, largest first; None: the default number.

    Raises ValueError if none does.
    """
    if ranks is None:
        return [default_ranks(config.plan, usable_cores())]
    if isinstance(ranks, int):
        ranks = range(ranks, ranks + 1)
    sizes, problem = [], None
    for size in reversed(ranks):
        try:
            Plan.make(config.plan, size)
            sizes.append(size)
        except ValueError as error:
            problem = problem or error
    if not sizes and problem is not None:
        raise problem
    return sizes


def resolve_start(config: Config, rank_info: RankInfo | None, ranks: int | range | None) -> ResolvedStart:
    """Resolve what a start depends on, and check it against this host and its launcher.

    `rank_info` is this rank, if a launcher started it; `ranks` has the numbers that the user allows. Raises ValueError in one line if this
    host or the launcher can't provide what is asked for.
    """
    if rank_info is not None and ranks is not None:
        asked = ranks if isinstance(ranks, int) else ranks[-1]
        raise ValueError(f"--ranks is {asked}: the launcher that started this process has set the number of ranks")
    runtime = resolve_devices(config.runtime)
    if rank_info is not None:
        rank_info = choose_rendezvous(rank_info, runtime.rendezvous)
    size = rank_info.size if rank_info is not None else choose_sizes(config, ranks)[0]
    plan = Plan.make(config.plan, size)
    check_runtime(runtime, rank_info, plan.training, plan.playing)
    return ResolvedStart(dataclasses.replace(config, runtime=runtime), rank_info, plan)


def start_warnings(config: Config, resolved: Config) -> list[str]:
    """Return the warnings for the user before a new run starts, a line each. `resolved` is the resolved `config`."""
    asked = dataclasses.replace(resolved, runtime=config.runtime)
    lines = []
    problem = interpreter_problem()
    if problem is not None and compiles(asked, images=False):
        lines.append(f"{problem}, so the update has no kernels: the run will be slower")
    fastest = fastest_engine(resolved.env, resolved.env.count // (resolved.plan.shards or 1))
    if config.env.engine == "auto" and resolved.env.engine != fastest:
        lines.append(
            f"env.engine is {resolved.env.engine!r}: {fastest!r} is faster, but can be evaluated only at checkpoints; "
            f"set run.evaluate_every to a multiple of run.checkpoint_every, which is {resolved.run.checkpoint_every}"
        )
    cut = cut_episodes(resolved)
    return lines if cut is None else [*lines, cut]


def announce_start(folder: RunFolder, config: Config, ranks: int, resume_from: int | None) -> None:
    """Print the first line of a start, before the ranks start, unless `run.progress` is off: name, environment, ranks, device, folder.

    `resume_from` is the iteration of the checkpoint, 0 if an existing run begins again, and None for a new run.
    """
    if config.run.progress == "off":
        return
    verb = "starting" if resume_from is None else "resuming" if resume_from else "restarting"
    origin = f" from iteration {resume_from}" if resume_from else ""
    if resume_from == 0:
        origin = " from the beginning" if folder.checkpoints() else ", which has no checkpoint"
    device, player = config.runtime.device, config.runtime.player_device
    devices = device if player in (None, device) else f"{device}, players on {player}"
    print(
        f"{verb} {folder.path.name}{origin}: {config.env.id}, {counted(ranks, 'rank')}, {devices}, in {folder}",
        flush=True,
    )


def is_complete(folder: RunFolder, config: Config, iteration: int) -> bool:
    """Return True if training is complete with the checkpoint of `iteration`: at the end of the budget, or ended before by a goal or a hook."""
    return iteration >= iterations(config) or folder.training_ended(iteration)


def completion_text(folder: RunFolder, config: Config) -> str:
    """Return the message for a run that has reached the end of its budget."""
    newest = max(folder.checkpoints(), default=0)
    if newest < iterations(config) and folder.ended_by_hook(newest):
        return f"{folder} is complete: a hook ended training in iteration {newest}"
    if newest < iterations(config):
        return f"{folder} is complete: run.stop_at_return ({config.run.stop_at_return:g}) was reached in iteration {newest}"
    return f"{folder} is complete: {counted(iterations(config), 'iteration')}; set a larger --total-steps to continue"


def extended_by(config: Config, tree: Mapping[str, Mapping[str, object]], total_steps: int | None) -> Config:
    """Return the config of a run that is resumed, with changed RESUMABLE_FIELDS and a larger budget. Raises ValueError for other changes."""
    run = dict(tree.get("run", {}))
    if "total_steps" in run:
        budget = decode({"run": {"total_steps": run.pop("total_steps")}}, config).run.total_steps
        total_steps = budget if total_steps is None else total_steps
        tree = {**tree, "run": run}
    given = [f"{section}.{field}" for section, fields in tree.items() for field in fields]
    fixed = next((name for name in given if name not in RESUMABLE_FIELDS), None)
    if fixed:
        raise ValueError(
            f"{fixed}: it is part of the experiment and stays as it is; resume takes run.total_steps, {', '.join(RESUMABLE_FIELDS)}"
        )
    engine = tree.get("env", {}).get("engine", config.env.engine)
    if engine != config.env.engine and not {engine, config.env.engine} <= set(SAME_EPISODES):
        raise ValueError(
            f"env.engine is {engine!r}: a run with {config.env.engine!r} keeps it; resume accepts another one only between "
            f"{' and '.join(map(repr, SAME_EPISODES))}, whose episodes are the same"
        )
    named = {} if "plan.kind" not in given else {"players": None, "trainers": None}
    plan = named | dict(tree.get("plan", {}))
    config = decode({**tree, **({"plan": plan} if plan else {})}, config)
    if total_steps is None:
        return config
    if total_steps < config.run.total_steps:
        raise ValueError(
            f"total_steps is {total_steps}: the run was made for {config.run.total_steps}, it can only grow"
        )
    return dataclasses.replace(config, run=dataclasses.replace(config.run, total_steps=total_steps))


def resolve_resume(config: Config, rank_info: RankInfo | None, ranks: int | range | None) -> ResolvedStart:
    """Resolve as `resolve_start` does, for a run that is resumed. Raises ValueError also if it can't be resumed on this host.

    A run that began with kernels on a CPU continues without them on a GPU.
    """
    if config.runtime.device not in ("auto", "cpu"):
        config = dataclasses.replace(config, runtime=dataclasses.replace(config.runtime, compile="off"))
    start = resolve_start(config, rank_info, ranks)
    check_kernels(start.config, start.plan)
    return start


def check_kernels(config: Config, plan: Plan) -> None:
    """Raise ValueError if the update of the run uses kernels and this host can't run them. `config` is that of an existing run."""
    if resolve(config, plan.ranks, plan).runtime.compile != config.runtime.compile:
        raise ValueError(f"runtime.compile is 'on' in this run: {interpreter_problem()}")


def exit_codes_by_error() -> dict[type[Exception], int]:
    """Return the exit codes of errors that end a rank."""
    from lockstep.algorithm.exchange import ReplicasDiffer, TrainersDiffer
    from lockstep.algorithm.non_finite import NonFinite, NonFiniteWeights
    from lockstep.compiling.build import CompilerFailed
    from lockstep.compiling.values import Unsupported
    from lockstep.envs.engine import EnvironmentFailed, EnvironmentLost
    from lockstep.experiment.hooks import HookFailed
    from lockstep.experiment.same_ranks import RanksDiffer
    from lockstep.group.group import RankLost
    from lockstep.run.checkpoint import CheckpointFailed
    from lockstep.run.folder import FolderLost
    from lockstep.run.stop import StoppedEarly
    from lockstep.store.remote import StoreFailed

    return {
        StoppedEarly: STOPPED_BY_SIGNAL,
        CheckpointFailed: FAILED,
        FolderLost: FAILED,
        StoreFailed: FAILED,
        CompilerFailed: FAILED,
        Unsupported: FAILED,
        EnvironmentFailed: FAILED,
        HookFailed: FAILED,
        RanksDiffer: BAD_INPUT,
        NonFinite: NON_FINITE,
        NonFiniteWeights: NON_FINITE,
        RankLost: RANK_LOST,
        EnvironmentLost: RANK_LOST,
        ReplicasDiffer: REPLICAS_DIFFER,
        TrainersDiffer: REPLICAS_DIFFER,
    }


def run_rank(
    rank_info: RankInfo, folder: RunFolder, config: Config, plan: Plan, resume_from: int, hook: "Hook | None" = None
) -> "TrainingRun":
    """Join the other ranks, and train as `execute` does."""
    from lockstep.experiment.same_ranks import check_same_start
    from lockstep.runtime.join import join

    with join(rank_info, config.runtime, plan.training, plan.playing) as runtime:
        check_same_start(runtime.group, config)
        return execute(folder, config, plan, runtime, resume_from, hook)


def raise_for_exit_code(code: int) -> None:
    """Raise the exception for the exit code of ranks, if it is an error. The ranks or their launcher have printed the details."""
    from lockstep.group.group import RankLost

    if code in (DONE, STOPPED_BY_SIGNAL):
        return
    if code == RANK_LOST:
        raise RankLost.from_message(
            "training has failed because a rank hung or its process ended; the messages on the standard error stream name the rank and the cause"
        )
    message = f"ranks ended with exit code {code}; their messages are on the standard error stream"
    if code == BAD_INPUT:
        raise ValueError(message)
    kind = next((kind for kind, kind_code in exit_codes_by_error().items() if kind_code == code > FAILED), RuntimeError)
    raise kind(message)
