"""One rank at work, however it was started."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from lockstep.algorithm.non_finite import NonFinite
from lockstep.algorithm.plan import Plan
from lockstep.cli.start import complete
from lockstep.config import Config
from lockstep.envs.engine import EnvironmentFailed
from lockstep.experiment.execute import create_run, execute, open_run
from lockstep.experiment.resolve import iterations
from lockstep.experiment.start import exit_codes, prepare_resume, run_rank
from lockstep.group.group import Group
from lockstep.processes.exit_codes import PREEMPTED
from lockstep.run.folder import RunFolder
from lockstep.run.run import Run
from lockstep.run.stop import StoppedEarly, end_unheard
from lockstep.runtime.join import join
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.runtime import Runtime

__all__ = ["resume_under_launcher", "train_alone", "train_at", "train_under_launcher"]

_PATH_BYTES = 4096


def train_alone(folder: RunFolder, resume_from: int) -> int:
    """The run in this process, as its only rank."""
    return train_at(RankInfo(0, 1, 0, 1), folder, resume_from)


def train_at(place: RankInfo, folder: RunFolder, resume_from: int) -> int:
    """The run as one of the ranks that our own launch started."""
    _, config = open_run(folder.path)
    return _guarded(place.rank, lambda: _finish(place.rank, run_rank(place, folder, config, resume_from)))


def train_under_launcher(place: RankInfo, config: Config, preset: str | None) -> int:
    """A new run of a resolved config, as one of the ranks that a launcher started. Rank 0 makes the folder and tells the others
    where.
    """

    def prepare() -> tuple[RunFolder, int]:
        folder = create_run(config, preset, place.size)
        folder.lock()
        return folder, 0

    def work() -> int:
        with _meet(place, config) as runtime:
            folder, _ = _agree(runtime.group, prepare)
            run = execute(folder, open_run(folder.path)[1], runtime, 0)
        return _finish(place.rank, run)

    return _guarded(place.rank, work)


def resume_under_launcher(
    place: RankInfo, folder: RunFolder, before: Config, config: Config, iteration: int | None
) -> int:
    """Resume a run as one of the ranks that a launcher started. Rank 0 locks the run, then chooses the checkpoint for all ranks.

    The arguments are those of `prepare_resume`.
    """

    def prepare() -> tuple[RunFolder, int]:
        folder.lock()
        resume_from = prepare_resume(folder, before, config, iteration)
        return folder, iterations(config) if resume_from is None else resume_from

    def work() -> int:
        with _meet(place, config) as runtime:
            _, resume_from = _agree(runtime.group, prepare)
            if resume_from < iterations(config):
                run = execute(folder, config, runtime, resume_from)
                return _finish(place.rank, run)
        if place.rank == 0:
            print(complete(folder, config))
        return 0

    return _guarded(place.rank, work)


def _agree(group: Group, make: Callable[[], tuple[RunFolder, int]]) -> tuple[RunFolder, int]:
    """Run `make` on rank 0 alone, and give its folder and iteration to all ranks.

    Where that fails every rank ends with exit code 2, and rank 0 says why.
    """
    path, problem = b"", None
    if group.rank == 0:
        try:
            folder, iteration = make()
            path = f"{iteration} {folder.path.absolute()}".encode()
        except ValueError as error:
            problem = error
    row = torch.zeros(1, _PATH_BYTES, dtype=torch.uint8)
    row[0, : len(path)] = torch.frombuffer(bytearray(path), dtype=torch.uint8) if path else 0
    told = bytes(group.gather(row, "start")[0].tolist()).rstrip(b"\0").decode()
    if problem is not None:
        raise problem
    if not told:
        end_unheard()
    first, _, place = told.partition(" ")
    return RunFolder(Path(place)), int(first)


def _meet(place: RankInfo, config: Config) -> Runtime:
    plan = Plan.make(config.plan, place.size)
    return join(place, config.runtime, plan.training, plan.playing)


def _finish(rank: int, run: Run) -> int:
    if rank == 0:
        print(_closing(run), flush=True)
    return PREEMPTED if run.stopped else 0


def _guarded(rank: int, work: Callable[[], int]) -> int:
    """Runs `work`; faults that have an exit code of their own become one line and that code."""
    codes = exit_codes()
    try:
        return work()
    except tuple(codes) as error:
        if isinstance(error, EnvironmentFailed) and error.__cause__:  # the way through the environment's own code
            traceback.print_exception(error.__cause__)
        for trace in getattr(error, "__notes__", ()):  # the same, from an environment's own process
            print(trace, file=sys.stderr)
        if rank == 0 or not isinstance(error, (NonFinite, StoppedEarly)):  # which all ranks find at once
            print(f"lockstep: {error}", file=sys.stderr, flush=True)
        return codes[type(error)]


def _closing(run: Run) -> str:
    """What a run says last."""
    lines, counters, episodes = [], run.counters, run.counters.episodes
    if run.stopped:
        lines.append(f"stopped after iteration {run.done} of {run.last}")
        lines.append(f"go on from iteration {run.saved} with: lockstep resume {run.folder.path}")
    else:
        lines.append(f"done: {run.done} iterations, {counters.env_steps:,} steps in {counters.seconds:.1f} s")
    if episodes.mean is not None:
        lines.append(f"return: {episodes.mean:.4g}, mean of the last {len(episodes.returns)} episodes")
    if counters.solved_at is not None:
        lines.append(f"solved: it reached {counters.goal:g} after {counters.solved_at:,} steps")
    lines.append(f"run: {run.folder.path}")
    return "\n".join(lines)
