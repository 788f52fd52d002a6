"""Training as one rank: alone, launched by lockstep, or started by a launcher."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from lockstep.algorithm.exchange import TrainersDiffer
from lockstep.algorithm.non_finite import NonFinite
from lockstep.algorithm.plan import Plan
from lockstep.config import Config
from lockstep.envs.engine import EnvironmentFailed
from lockstep.experiment.execute import create_run, execute, open_run
from lockstep.experiment.hooks import Hook, HookFailed
from lockstep.experiment.resolve import iterations
from lockstep.experiment.same_ranks import RanksDiffer, check_same_start
from lockstep.experiment.start import announce_start, completion_text, exit_codes, prepare_resume, run_rank
from lockstep.group.group import Group
from lockstep.processes.exit_codes import DONE, PREEMPTED
from lockstep.run.checkpoint import CheckpointFailed
from lockstep.run.folder import FolderLost, RunFolder
from lockstep.run.run import TrainingRun
from lockstep.run.stop import StoppedEarly, exit_silently
from lockstep.runtime.join import join
from lockstep.runtime.rank_info import RankInfo

__all__ = ["resume_under_launcher", "train_alone", "train_rank", "train_under_launcher"]

_RAISED_BY_ALL = CheckpointFailed, FolderLost, NonFinite, RanksDiffer, StoppedEarly, TrainersDiffer
"""Errors that every rank raises with the same message, which rank 0 prints."""
_MESSAGE_BYTES = 4096
"""Size of the message in which rank 0 sends the iteration and the path of the run folder to all ranks."""


def train_alone(folder: RunFolder, plan: Plan, resume_from: int, hook: Hook | None) -> int:
    """Train the run in this process, as its only rank. Return the exit code."""
    return _train(RankInfo(0, 1, 0, 1), folder, open_run(folder.path)[1], plan, resume_from, hook)


def train_rank(rank_info: RankInfo, folder: RunFolder, resume_from: int, hook: Hook | None) -> int:
    """Train the run as one of the ranks that lockstep itself has launched. Return the exit code."""
    _, config = open_run(folder.path)
    return _train(rank_info, folder, config, Plan.make(config.plan, rank_info.size), resume_from, hook)


def _train(
    rank_info: RankInfo, folder: RunFolder, config: Config, plan: Plan, resume_from: int, hook: Hook | None
) -> int:
    rank = rank_info.rank
    return _guarded(rank, lambda: _finish(rank, run_rank(rank_info, folder, config, plan, resume_from, hook)))


def train_under_launcher(rank_info: RankInfo, config: Config, plan: Plan, preset: str | None, hook: Hook | None) -> int:
    """Train a new run as one of the ranks that a launcher started. Return the exit code. Rank 0 creates the folder."""

    def prepare() -> tuple[RunFolder, int]:
        folder = create_run(config, preset, rank_info.size)
        folder.lock()
        announce_start(folder, config, plan.ranks, None)
        return folder, 0

    def work() -> int:
        with join(rank_info, config.runtime, plan.training, plan.playing) as runtime:
            check_same_start(runtime.group, config)
            folder, _ = _choose_on_rank_0(runtime.group, prepare)
            run = execute(folder, open_run(folder.path)[1], plan, runtime, 0, hook)
        return _finish(rank_info.rank, run)

    return _guarded(rank_info.rank, work)


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

    def prepare() -> tuple[RunFolder, int]:
        folder.lock()
        resume_from = prepare_resume(folder, config_before, config, iteration, plan.ranks)
        return folder, iterations(config) if resume_from is None else resume_from

    def work() -> int:
        with join(rank_info, config.runtime, plan.training, plan.playing) as runtime:
            check_same_start(runtime.group, config)
            _, resume_from = _choose_on_rank_0(runtime.group, prepare)
            if resume_from < iterations(config):
                run = execute(folder, config, plan, runtime, resume_from, hook)
                return _finish(rank_info.rank, run)
        if rank_info.rank == 0:
            print(completion_text(folder, config))
        return 0

    return _guarded(rank_info.rank, work)


def _choose_on_rank_0(group: Group, choose: Callable[[], tuple[RunFolder, int]]) -> tuple[RunFolder, int]:
    """Call `choose` on rank 0, and return its result on all ranks.

    If `choose` raises ValueError, rank 0 raises it too, and the other ranks exit silently with code 2.
    """
    message, problem = b"", None
    if group.rank == 0:
        try:
            folder, iteration = choose()
            message = f"{iteration} {folder.path.absolute()}".encode()
        except ValueError as error:
            problem = error
    row = torch.zeros(1, _MESSAGE_BYTES, dtype=torch.uint8)
    row[0, : len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8) if message else 0
    received = bytes(group.gather(row, "start")[0].tolist()).rstrip(b"\0").decode()
    if problem is not None:
        raise problem
    if not received:
        exit_silently()
    iteration_text, _, path = received.partition(" ")
    return RunFolder(Path(path)), int(iteration_text)


def _finish(rank: int, run: TrainingRun) -> int:
    if rank == 0:
        print(_result_text(run), flush=True)
    return PREEMPTED if run.stopped else DONE


def _guarded(rank: int, work: Callable[[], int]) -> int:
    """Call `work` and return its exit code. Report an error of `exit_codes` in one line, and return its code."""
    codes = exit_codes()
    try:
        return work()
    except tuple(codes) as error:
        if isinstance(error, (EnvironmentFailed, HookFailed)) and error.__cause__:  # shows the line in the user's code
            traceback.print_exception(error.__cause__)
        for trace in getattr(error, "__notes__", ()):  # the stack trace from the process of an environment
            print(trace, file=sys.stderr)
        raised_by_all = isinstance(error, _RAISED_BY_ALL)
        if rank == 0 or not raised_by_all:
            print(f"lockstep: {error}", file=sys.stderr, flush=True)
        return codes[type(error)]


def _result_text(run: TrainingRun) -> str:
    lines, counters, episodes = [], run.counters, run.counters.episodes
    if run.stopped:
        lines.append(f"stopped after iteration {run.done} of {run.last}")
        lines.append(f"go on from iteration {run.saved} with: {run.folder.resume_command()}")
    else:
        lines.append(
            f"done: {run.done} iteration{'s' * (run.done != 1)}, {counters.env_steps:,} steps in {counters.seconds:.1f} s"
        )
    if run.stop.complete:
        reason = "by a hook" if run.ended_by_hook else f"run.stop_at_return ({run.stop_at_return:g}) was reached"
        lines.append(f"ended: {reason}")
    if episodes.mean is not None:
        lines.append(f"return: {episodes.mean:.4g}, mean of the last {len(episodes.returns)} episodes")
    if counters.solved_at is not None:
        lines.append(f"solved: it reached {counters.goal:g} after {counters.solved_at:,} steps")
    if counters.env_faults:
        times = f"{counters.env_faults} time{'s' * (counters.env_faults != 1)}"
        lines.append(
            f"faults: environments failed {times} and were replaced: the config alone does not reproduce this run"
        )
    lines.append(f"run: {run.folder.path}")
    return "\n".join(lines)
