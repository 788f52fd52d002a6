"""Training as one rank: alone, launched by lockstep, or started by a launcher."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from lockstep.algorithm.exchange import TrainersDiffer
from lockstep.algorithm.non_finite import NonFinite
from lockstep.algorithm.plan import Plan
from lockstep.config import Config
from lockstep.config.decode import decode, encode
from lockstep.envs.engine import EnvironmentFailed
from lockstep.experiment.execute import execute, open_run
from lockstep.experiment.hooks import Hook, HookFailed
from lockstep.experiment.prepare_resume import prepare_resume
from lockstep.experiment.prepare_run import PreparedRun, ResolvedRun, prepare_run
from lockstep.experiment.same_ranks import RanksDiffer, check_same_start
from lockstep.experiment.start import completion_text, exit_codes_by_error, run_rank
from lockstep.experiment.supervise import resume_command
from lockstep.group.group import Group, RankLost
from lockstep.group.texts import exchange_texts
from lockstep.processes.allocator import keep_freed_memory
from lockstep.processes.exit_codes import BAD_INPUT, DONE, IN_USE, STOPPED_BY_SIGNAL
from lockstep.run.checkpoint import CheckpointFailed
from lockstep.run.folder import FolderLost, RunFolder, RunInUse
from lockstep.run.run import TrainingRun
from lockstep.run.stop import StoppedEarly, exit_silently
from lockstep.runtime.join import join
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RESTARTS
from lockstep.runtime.watchdog import watchdog
from lockstep.telemetry.result import result_text

__all__ = ["resume_under_launcher", "train_alone", "train_rank", "train_under_launcher"]

_RAISED_BY_ALL = CheckpointFailed, FolderLost, NonFinite, RanksDiffer, StoppedEarly, TrainersDiffer
"""Errors that every rank raises with the same message, which rank 0 prints."""


def train_alone(folder: RunFolder, plan: Plan, resume_from: int, hook: Hook | None) -> int:
    """Train the run in this process, as its only rank. Return the exit code."""
    return _train(RankInfo(0, 1, 0, 1), folder, open_run(folder.path)[1], plan, resume_from, hook, 0)


def train_rank(rank_info: RankInfo, folder: RunFolder, resume_from: int, hook: Hook | None, restarts: int) -> int:
    """Train the run as one of the ranks that lockstep itself has launched, with `--restarts`. Return the exit code."""
    _, config = open_run(folder.path)
    return _train(rank_info, folder, config, Plan.make(config.plan, rank_info.size), resume_from, hook, restarts)


def _train(
    rank_info: RankInfo,
    folder: RunFolder,
    config: Config,
    plan: Plan,
    resume_from: int,
    hook: Hook | None,
    restarts: int,
) -> int:
    rank = rank_info.rank
    return _guarded(rank, lambda: _finish(rank, run_rank(rank_info, folder, config, plan, resume_from, hook), restarts))


def train_under_launcher(rank_info: RankInfo, run: ResolvedRun, hook: Hook | None) -> int:
    """Train as one of the ranks that a launcher started. Return the exit code. Rank 0 creates or opens the folder."""
    return _train_together(rank_info, run.config, run.plan, lambda: prepare_run(run), hook)


def resume_under_launcher(
    rank_info: RankInfo,
    folder: RunFolder,
    config_before: Config,
    config: Config,
    plan: Plan,
    iteration: int | None,
    hook: Hook | None,
) -> int:
    """Resume a run as one of the ranks that a launcher started. Return the exit code.

    `config_before`, `config` and `iteration` are the arguments of `prepare_resume`.
    """

    def prepare() -> PreparedRun:
        folder.lock()
        return PreparedRun(folder, config, prepare_resume(folder, config_before, config, iteration, plan.ranks))

    return _train_together(rank_info, config, plan, prepare, hook)


def _train_together(
    rank_info: RankInfo, config: Config, plan: Plan, prepare: Callable[[], PreparedRun], hook: Hook | None
) -> int:
    """Join the other ranks, train the run that rank 0 gets from `prepare`, and return the exit code. `config` is the same on all ranks."""

    def work() -> int:
        with (
            join(rank_info, config.runtime, plan.training, plan.playing) as runtime,
            watchdog(rank_info.rank, rank_info.size, config.runtime.timeout),
        ):
            check_same_start(runtime.group, config)
            folder, run_config, resume_from = _choose_on_rank_0(runtime.group, prepare)
            if resume_from is not None:
                run = execute(folder, run_config, plan, runtime, resume_from, hook)
                return _finish(rank_info.rank, run)
        if rank_info.rank == 0:
            print(completion_text(folder, run_config))
        return DONE

    return _guarded(rank_info.rank, work)


def _choose_on_rank_0(group: Group, prepare: Callable[[], PreparedRun]) -> PreparedRun:
    """Call `prepare` on rank 0, and return its result on all ranks. The other ranks do not read the folder, which may look different to them.

    If `prepare` raises ValueError, rank 0 raises it too, and the other ranks exit silently with the same code.
    """
    message: dict[str, object] = {}
    begun, problem = None, None
    if group.rank == 0:
        try:
            begun = prepare()
            path = str(begun.folder.path.absolute())
            message = {"path": path, "resume_from": begun.resume_from, "config": encode(begun.config)}
        except ValueError as error:
            problem = error
            message = {"code": IN_USE if isinstance(error, RunInUse) else BAD_INPUT}
    received = json.loads(exchange_texts(group, json.dumps(message), "start")[0])
    if problem is not None:
        raise problem
    if "code" in received:
        exit_silently(received["code"])
    if begun is not None:
        return begun
    return PreparedRun(RunFolder(Path(received["path"])), decode(received["config"], Config()), received["resume_from"])


def _finish(rank: int, run: TrainingRun, restarts: int = RESTARTS) -> int:
    if rank == 0:
        try:
            print(result_text(run, resume_command(run.folder, restarts)), flush=True)
        except OSError:  # a closed pipe or terminal does not change the outcome
            # otherwise Python's own flush at exit fails again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return STOPPED_BY_SIGNAL if run.stopped else DONE


def _guarded(rank: int, work: Callable[[], int]) -> int:
    """Call `work` and return its exit code. Report an error of `exit_codes_by_error` in one line, and return its code.

    The loss of a rank that has reported its own error is not reported: the last line names the cause.
    """
    codes = exit_codes_by_error()
    keep_freed_memory()
    try:
        return work()
    except tuple(codes) as error:
        if isinstance(error, (EnvironmentFailed, HookFailed)) and error.__cause__:  # shows the line in the user's code
            traceback.print_exception(error.__cause__)
        for trace in getattr(error, "__notes__", ()):  # the stack trace from the process of an environment
            print(trace, file=sys.stderr)
        reported = isinstance(error, RankLost) and error.reported
        if not reported and (rank == 0 or not isinstance(error, _RAISED_BY_ALL)):
            print(f"lockstep: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return codes[type(error)]
