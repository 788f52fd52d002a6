"""Training on a cluster of Ray: this process places the ranks, and starts all of them again after a fault."""

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from lockstep.clusters.job import Job, read_submission
from lockstep.clusters.ray_connection import (
    connected,
    process_variables,
    rank_capacity,
    read_address,
    read_resources,
)
from lockstep.clusters.request import Request, reserved
from lockstep.experiment.supervise import RestartLimit
from lockstep.messages import print_warning
from lockstep.processes.exit_codes import (
    DONE,
    FAILED,
    RANK_LOST,
    REPRODUCIBLE,
    STOPPED_BY_SIGNAL,
)
from lockstep.processes.parent import own_command
from lockstep.run.folder import DRIVEN, RunFolder, RunInUse
from lockstep.run.stop import asked_to_stop, listen
from lockstep.telemetry.attempts import record_fault

if TYPE_CHECKING:
    from lockstep.clusters.ray_group import Ended

__all__ = ["submit"]

_PLACEMENT = 30.0
"""Seconds to wait until all ranks are placed, if a smaller number can be tried. For up to a minute, Ray offers the cores of a lost node."""
_LAST_PLACEMENT = 120.0
"""Seconds to wait at the first start, and if no smaller number can be tried."""


def submit(request: Request) -> int:
    """Train on the cluster until training has ended, and return the exit code.

    Raises ValueError in one line if Ray is missing, does not answer, or has fewer cores than the smallest number of ranks needs.
    """
    address, resources = read_address(request.options), read_resources(request.options)
    write = partial(_write, sys.stdout)
    with ExitStack() as stack:
        with reserved(request) as job:
            stack.enter_context(connected(address))
            _check_capacity(job, resources)
            listen(announce=False)  # rank 0 does
            stack.callback(_remove_unused_folder, job.folder)
            stack.enter_context(job.folder.driven())
        # from here on, rank 0 locks the run
        return _train(job, resources, write)


def _check_capacity(job: Job, resources: Mapping[str, float]) -> None:
    fits = rank_capacity(resources)
    if fits < job.sizes[-1]:
        needs = " and ".join(f"{number:g} {name}" for name, number in resources.items())
        raise ValueError(f"--ranks is at least {job.sizes[-1]}: the cluster has room for {fits}, with {needs} per rank")


def _train(job: Job, resources: Mapping[str, float], write: Callable[[bool, str], None]) -> int:
    """Run the ranks until training has ended. After a fault, start all of them again, with as many as can be placed."""
    from lockstep.clusters.ray_group import NotPlaced, RankCommand, run_group

    command = RankCommand(own_command(*job.arguments), process_variables() | {DRIVEN: "1"}, str(Path.cwd()))
    limit, sizes, is_first = RestartLimit(job.restarts), list(job.sizes), True
    while sizes and not asked_to_stop():
        size = next((size for size in sizes if size <= rank_capacity(resources)), sizes[-1])
        timeout = _LAST_PLACEMENT if is_first or size == sizes[-1] else _PLACEMENT
        is_first = False
        try:
            ended = run_group(size, resources, command, write, asked_to_stop, timeout)
        except NotPlaced as error:
            _say(str(error))
            sizes = [smaller for smaller in sizes if smaller < size]
            continue
        if ended.code in (DONE, *REPRODUCIBLE) or asked_to_stop():
            return ended.code
        if ended.code != STOPPED_BY_SIGNAL and not _prepare_restart(job, limit, ended):
            return ended.code
        sizes = list(job.sizes)
    return STOPPED_BY_SIGNAL if asked_to_stop() else FAILED


def _prepare_restart(job: Job, limit: RestartLimit, ended: "Ended") -> bool:
    """Record a fault, and return True after the pause before the next start; False if the ranks do not start again."""
    folder = job.folder
    reached = folder.last_metrics().get("iteration")
    iteration = reached + 1 if isinstance(reached, int) else 0
    saved = max(folder.checkpoints(), default=0)
    record_fault(folder, ended.problem, iteration, reported=ended.code == RANK_LOST)
    reason = limit.reason_to_end(iteration, saved)
    if reason is not None:
        _say(f"{ended.problem}; not started again: {reason}")
        return False
    location = f"iteration {saved}" if saved else "the start"
    _say(f"{ended.problem}; starting again from {location} (restart {limit.used} of {job.restarts})")
    time.sleep(limit.pause)
    return True


def _remove_unused_folder(folder: RunFolder) -> None:
    """Remove the folder if no rank has created the run."""
    if folder.has_config():
        return
    with suppress(OSError, RunInUse), folder.locked():
        if not folder.has_config() and read_submission(folder) is None:
            shutil.rmtree(folder.path)


def _say(text: str) -> None:
    print_warning(text)


def _write(output: TextIO, is_error: bool, line: str) -> None:
    print(line, file=sys.stderr if is_error else output, flush=True)
