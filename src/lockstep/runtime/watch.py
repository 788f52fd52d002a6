"""Waiting for the ranks that a launcher has started: forwarded signals, ranks that end, ranks whose heartbeat stops."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple

from lockstep.messages import print_warning
from lockstep.processes import exit_codes
from lockstep.processes.heartbeat import STOPPED_AFTER, Heartbeats
from lockstep.processes.signals import STACKS_SIGNAL, handled_signals, signal_name
from lockstep.run.stop import asked_to_stop, asked_to_stop_now, record_signal
from lockstep.runtime.hang_detector import STACKS_TIME, HangDetector

__all__ = ["Outcome", "watch"]

_POLL = 0.02
"""Seconds between two polls of the ranks."""
_GRACE_AFTER_FAILURE = 5.0
"""Seconds that the other ranks have to end by themselves after one has failed."""
_GRACE_AFTER_SUCCESS = 90.0
"""Seconds that the other ranks have after one has ended with code 0. If only rank 0 is left, there is no limit here: it
waits for evaluations, videos and trackers, with limits of its own (`telemetry.recorder`)."""
_GRACE_AFTER_EXIT_CODE = 20.0
"""Seconds that a rank has to end after it has decided on its exit code: threads of foreign code may keep it alive."""
_GRACE_AFTER_SIGNAL = 20.0
"""Seconds that the ranks have to stop after a signal: schedulers kill a job 30 seconds after SIGTERM."""
_GRACE_AFTER_SECOND_SIGNAL = 2.0
"""Seconds that the ranks have to end after a second signal. Python handles signals between two bytecode instructions: it takes
two that arrive during one call of compiled code for one."""


class Outcome(NamedTuple):
    """Outcome of a start of all ranks."""

    code: int
    """The exit code, one of `exit_codes`."""
    fault: str = ""
    """Description of the fault, in one line, if a restart may help: a rank was killed, crashed or hung.
    Empty if the ranks ended by themselves, or failed with an error that a restart would repeat."""
    iteration: int | None = 0
    """The last iteration that a rank has begun; 0: none. None: the ranks have no memory for heartbeats, so it is not known."""
    reported: bool = False
    """True if a rank has reported the fault itself, in more detail."""

    @property
    def is_consequence(self) -> bool:
        """True if the fault is that a rank has lost another process: the fault of that process is the cause."""
        return self.reported and self.code == exit_codes.RANK_LOST


@dataclass
class _Rank:
    """One rank, as the launcher sees it."""

    number: int
    process: "subprocess.Popen[bytes]"
    detector: HangDetector | None = None
    """None: the ranks have no memory for heartbeats."""
    exit_code_at: float | None = None
    killed: bool = False
    """True if this process has killed the rank."""

    def signal_group(self, number: int) -> None:
        """Send a signal to the rank and all processes that it has started in its session."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)  # a rank leads a session, and so a group

    def kill(self) -> None:
        """Kill the rank and all processes that it has started in its session."""
        self.killed = True
        self.signal_group(signal.SIGKILL)
        with suppress(ProcessLookupError):
            self.process.kill()


def watch(
    processes: Sequence["subprocess.Popen[bytes]"],
    heartbeats: Heartbeats | None,
    timeout: float,
    previous_mask: set[int],
) -> Outcome:
    """Forward signals to the ranks, and wait until all have ended. Kill those that do not end by themselves.

    `heartbeats` are those of the ranks, if the system has memory for them. A rank without a beat for `timeout` seconds is ended.
    `previous_mask` is the signal mask to restore once signals are forwarded.
    """
    ranks = [_Rank(number, process) for number, process in enumerate(processes)]

    def send(number: int) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    def forward(number: int, frame: FrameType | None) -> None:
        record_signal(number)
        send(number)

    def suspend(number: int, frame: FrameType | None) -> None:
        """Stop with all ranks, and continue with them: Ctrl-Z reaches only this process."""
        for rank in ranks:
            rank.signal_group(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for rank in ranks:
            rank.signal_group(signal.SIGCONT)

    previous_handlers = {number: signal.signal(number, forward) for number in handled_signals()}
    if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
        previous_handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, suspend)
    signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
    asked = asked_to_stop()
    if asked:  # before this process began to forward signals
        send(asked)
    try:
        return _Watch(ranks, heartbeats, timeout).wait()
    finally:
        for rank in ranks:
            if rank.process.poll() is None:
                rank.kill()
            rank.process.wait()
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


class _Watch:
    """State of `watch`: when the ranks showed heartbeats, how the first of them ended, and how long the others may take."""

    def __init__(self, ranks: Sequence[_Rank], heartbeats: Heartbeats | None, timeout: float) -> None:
        self._ranks = ranks
        self._heartbeats = heartbeats
        self._deadline = float("inf")
        self._failure: Outcome | None = None
        self._asked_at: float | None = None
        self._asked_again_at: float | None = None
        self._now = time.monotonic()
        if heartbeats is not None:
            for rank in ranks:
                rank.detector = HangDetector(rank.number, rank.process.pid, heartbeats.of_rank(rank.number), timeout)

    def wait(self) -> Outcome:
        """Return when all ranks have ended, or when those that are left are to be killed."""
        while True:
            codes = [rank.process.poll() for rank in self._ranks]
            before, self._now = self._now, time.monotonic()
            now = self._now
            if now - before > STOPPED_AFTER:
                self._skip_pause(now - before)
            self._note_endings(now)
            if None not in codes or now > self._deadline:
                default = self._fault("the ranks did not end together") if None in codes else Outcome(exit_codes.DONE)
                return (self._failure or default)._replace(iteration=self._iteration())
            if self._heartbeats is not None:
                self._check_heartbeats(now, self._heartbeats)
            self._check_stop(now)
            time.sleep(_POLL)

    def _skip_pause(self, seconds: float) -> None:
        """Move all limits by the time in which this process did not run: the ranks were stopped as well, or could not be watched."""
        self._deadline += seconds
        if self._asked_at is not None:
            self._asked_at += seconds
        if self._asked_again_at is not None:
            self._asked_again_at += seconds
        for rank in self._ranks:
            if rank.detector is not None:
                rank.detector.skip(seconds)
            if rank.exit_code_at is not None:
                rank.exit_code_at += seconds

    def _note_endings(self, now: float) -> None:
        """Decide on the outcome when ranks end, and how long the others may take."""
        ended = [rank for rank in self._ranks if rank.process.returncode is not None]
        failures = [outcome for rank in ended if (outcome := self._ending(rank)) is not None]
        cause = min(failures, key=lambda outcome: outcome.is_consequence, default=None)
        known = self._failure
        if cause is not None and (known is None or (known.is_consequence and not cause.is_consequence)):
            self._failure = cause
            if known is None:
                self._deadline = now + (_GRACE_AFTER_SUCCESS if self._is_clean else _GRACE_AFTER_FAILURE)
            if cause.fault and not cause.reported:
                print_warning(cause.fault)
        elif self._is_clean and all(rank.process.returncode is not None for rank in self._ranks[1:]):
            self._deadline = float("inf")  # only rank 0 is left
        elif ended and self._deadline == float("inf"):
            self._deadline = now + _GRACE_AFTER_SUCCESS

    @property
    def _is_clean(self) -> bool:
        """True if no rank has failed: the remaining ranks end by themselves, after the end of training or a signal."""
        return self._failure is None or self._failure == Outcome(exit_codes.STOPPED_BY_SIGNAL)

    def _ending(self, rank: _Rank) -> Outcome | None:
        """Return the outcome that the exit of this rank implies; None if it ended with code 0, or if this process killed it."""
        code = rank.process.returncode
        code_chosen = self._exit_code(rank)
        if code_chosen is not None:
            if code_chosen == exit_codes.RANK_LOST:
                return Outcome(code_chosen, "a rank lost another process", reported=True)
            if code_chosen == exit_codes.REPLICAS_DIFFER:
                return Outcome(code_chosen, "the ranks hold different weights", reported=True)
            return Outcome(code_chosen) if code_chosen else None
        if rank.killed:
            return None
        if code < 0:
            text = f"rank {rank.number} was killed by {signal_name(-code)}"
            if asked_to_stop() and -code in handled_signals():  # the second signal, which ends a rank at once
                return _interrupted_by(-code)
            return Outcome(exit_codes.FAILED, text)
        return self._fault(f"rank {rank.number} ended with exit code {code}, before the end of training")

    def _exit_code(self, rank: _Rank) -> int | None:
        """Return the exit code that the rank has chosen itself; None if foreign code, or a signal, has ended it."""
        if self._heartbeats is not None:
            return self._heartbeats.of_rank(rank.number).exit_code
        return rank.process.returncode if rank.process.returncode in exit_codes.KNOWN else None

    def _check_heartbeats(self, now: float, heartbeats: Heartbeats) -> None:
        """Kill ranks that hang, and those that have chosen an exit code long ago."""
        hanging = []
        for rank in self._ranks:
            if rank.process.returncode is not None or rank.killed:
                continue
            line = heartbeats.of_rank(rank.number)
            if line.exit_code is not None:
                rank.exit_code_at = rank.exit_code_at or now
                if now - rank.exit_code_at > _GRACE_AFTER_EXIT_CODE:
                    rank.kill()
                continue
            fault = rank.detector.find_fault(now) if rank.detector is not None else None
            if fault is not None:
                self._note_hanging(rank, fault)
                hanging.append(rank)
        if hanging:
            _end_with_stacks(hanging)
            self._now = time.monotonic()

    def _note_hanging(self, rank: _Rank, fault: str) -> None:
        """Print the fault of a rank that hangs, unless another fault is the cause."""
        if self._failure is None or self._failure.is_consequence:
            self._failure = Outcome(exit_codes.RANK_LOST, fault)
            self._deadline = time.monotonic() + STACKS_TIME + _GRACE_AFTER_FAILURE
            assert rank.detector is not None
            rank.detector.report(fault)

    def _check_stop(self, now: float) -> None:
        """End the ranks if they have not stopped some time after a signal."""
        if not asked_to_stop():
            return
        self._asked_at = self._asked_at or now
        again = asked_to_stop_now()
        if again:
            self._asked_again_at = self._asked_again_at or now
            if now - self._asked_again_at > _GRACE_AFTER_SECOND_SIGNAL:
                self._failure = self._failure or _interrupted_by(again)
                for rank in self._ranks:
                    rank.kill()
                return
        abandoned = any(rank.killed for rank in self._ranks)
        if self._is_clean and not abandoned and now - self._asked_at > _GRACE_AFTER_SIGNAL and self._is_training():
            text = f"the iteration did not end within {_GRACE_AFTER_SIGNAL:g} s of the signal and is abandoned"
            print_warning(f"{text}; resume the run to continue from its newest checkpoint")
            self._failure = Outcome(exit_codes.STOPPED_BY_SIGNAL)
            for rank in self._ranks:
                rank.kill()

    def _is_training(self) -> bool:
        """Return True unless a rank is closing: evaluations, videos and trackers have limits of their own."""
        heartbeats = self._heartbeats
        return heartbeats is None or all(heartbeats.of_rank(rank.number).stage != "end" for rank in self._ranks)

    def _iteration(self) -> int | None:
        heartbeats = self._heartbeats
        return None if heartbeats is None else max(heartbeats.of_rank(rank.number).iteration for rank in self._ranks)

    def _fault(self, text: str) -> Outcome:
        return Outcome(exit_codes.RANK_LOST, text)


def _interrupted_by(number: int) -> Outcome:
    """Return the outcome of ranks that a second signal has ended."""
    return Outcome(exit_codes.INTERRUPTED if number == signal.SIGINT else exit_codes.STOPPED_BY_SIGNAL)


def _end_with_stacks(ranks: Sequence[_Rank]) -> None:
    """Make ranks print their stack traces one after the other, then kill them."""
    for rank in ranks:
        with suppress(ProcessLookupError):
            rank.process.send_signal(STACKS_SIGNAL)
        time.sleep(_POLL)  # faulthandler writes line by line: traces of several ranks would be mixed
    end = time.monotonic() + STACKS_TIME
    for rank in ranks:
        with suppress(subprocess.TimeoutExpired):
            rank.process.wait(max(0.0, end - time.monotonic()))
        rank.kill()
