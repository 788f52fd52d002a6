"""Supervision of the ranks that this process launches: after a fault, they start again from the newest checkpoint."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lockstep.experiment.execute import open_run
from lockstep.experiment.start import completion_text, is_complete
from lockstep.messages import counted, print_warning
from lockstep.processes.exit_codes import DONE, FAILED
from lockstep.run.folder import RunFolder
from lockstep.run.manifest import newest_intact
from lockstep.run.stop import asked_to_stop
from lockstep.runtime.launch import RanksNotStarted, launch
from lockstep.runtime.settings import RESTARTS, RuntimeConfig
from lockstep.runtime.watch import Outcome
from lockstep.telemetry.attempts import record_fault

__all__ = ["RestartLimit", "resume_command", "supervise"]

_WINDOW = 3600.0
"""Seconds in which the number of restarts is limited."""
_PAUSES = (0.5, 2.0, 5.0)
"""Seconds before the first, the second and every further restart of an hour."""
_POLL = 0.05


@dataclass
class RestartLimit:
    """Decision whether ranks start again after a fault."""

    restarts: int
    """Number of restarts within an hour."""
    clock: Callable[[], float] = time.monotonic
    _times: list[float] = field(default_factory=list)
    _reached: tuple[int, int] | None = None

    def reason_to_end(self, iteration: int, saved: int) -> str | None:
        """Return the reason not to restart the ranks after a fault in `iteration`; None: restart them.

        `saved` is the iteration of the newest checkpoint. A second fault in the same iteration, without a checkpoint since the first,
        is assumed to be deterministic.
        """
        reached, self._reached = self._reached, (iteration, saved)
        if not self.restarts:
            return "--restarts is 0"
        if reached == (iteration, saved):
            return (
                f"this is the second fault before the end of iteration {iteration}"
                if iteration
                else "the ranks failed again before their first iteration"
            )
        now = self.clock()
        self._times = [then for then in self._times if now - then < _WINDOW]
        if len(self._times) >= self.restarts:
            return f"the limit of {self.restarts} restarts within an hour was reached (--restarts)"
        self._times.append(now)
        return None

    @property
    def used(self) -> int:
        """Number of restarts within the last hour."""
        return len(self._times)

    @property
    def pause(self) -> float:
        """Seconds to wait before the restart that `reason_to_end` has just allowed."""
        return _PAUSES[min(self.used, len(_PAUSES)) - 1]


def supervise(
    folder: RunFolder,
    sizes: Sequence[int],
    resume_from: int,
    modules: Sequence[str],
    hook: str | None,
    restarts: int,
) -> int:
    """Run the ranks as processes of this host until training has ended, and return the exit code. The caller has locked the run.

    `sizes` are numbers of ranks that fit the plan, in order of preference: the next one is used if a rank can't be started. Each
    process imports `modules`; `module:function` names a function that creates the environment. Rank 0 imports `hook`.
    """
    hooks = [] if hook is None else ["--hook", hook]
    again = resume_command(folder, restarts)
    limit, sizes = RestartLimit(restarts), list(sizes)
    while True:
        _, config = open_run(folder.path)
        command = ["rank", *hooks, str(restarts), str(folder), str(resume_from), *modules]
        outcome = _launch(command, sizes, config.runtime)
        if not outcome.fault:
            return outcome.code
        record_fault(folder, outcome.fault, outcome.iteration or 0, reported=outcome.reported)
        if asked_to_stop():
            return outcome.code
        if outcome.iteration != 0:  # until then, the checkpoints after the one that the user has chosen are still there
            checkpoints = folder.checkpoints()
            found = newest_intact(folder, checkpoints)
            for error in found.damaged:
                print_warning(str(error))
            # a start from iteration 0 would remove the damaged checkpoints: that is the user's decision
            if checkpoints and found.state is None:
                text = f"no checkpoint is intact; start from the beginning with: {again} --iteration 0"
                print_warning(f"not started again: {text}")
                return outcome.code
            resume_from = found.iteration
        if is_complete(folder, config, resume_from):
            # the fault came after the last iteration, while rank 0 waited for evaluations or trackers
            print(completion_text(folder, config), flush=True)
            return DONE
        problem = limit.reason_to_end(resume_from if outcome.iteration is None else outcome.iteration, resume_from)
        if problem is None:
            location = f"from iteration {resume_from}" if resume_from else "from the start"
            text = f"starting {counted(sizes[0], 'rank')} again {location} (restart {limit.used} of {restarts})"
            print_warning(text)
            problem = _sleep(limit.pause)
        if problem is not None:
            if restarts:
                text = f"not started again: {problem}; continue with: {again}"
                print_warning(text)
            return outcome.code


def resume_command(folder: RunFolder, restarts: int) -> str:
    """Return the command that resumes a run with the same `--restarts`."""
    return folder.resume_command(*(() if restarts == RESTARTS else ("--restarts", str(restarts))))


def _launch(command: Sequence[str], sizes: list[int], config: RuntimeConfig) -> Outcome:
    """Run `command` with the first of `sizes`. Remove those with which a rank can't be started, except for the last one."""
    while True:
        try:
            return launch(command, sizes[0], config)
        except RanksNotStarted as error:
            fault = f"{counted(sizes[0], 'rank')} can't be started: {error.strerror}"
            print_warning(fault)
            if len(sizes) == 1:
                return Outcome(FAILED, fault)
            del sizes[0]


def _sleep(seconds: float) -> str | None:
    """Wait, and return a problem if a signal arrives meanwhile."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if asked_to_stop():
            return "a signal has asked to stop"
        time.sleep(_POLL)
    return None
