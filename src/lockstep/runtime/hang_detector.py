"""Detection of ranks that hang: how long the heartbeat of a rank has not changed, when to warn, and when to end the rank."""

import time
from pathlib import Path

from lockstep.messages import print_warning
from lockstep.processes.heartbeat import Heartbeat
from lockstep.processes.host_name import host_name

__all__ = ["STACKS_TIME", "HangDetector"]

STACKS_TIME = 0.5
"""Seconds that a hanging rank has to print its stack traces before it is killed."""
_START_LIMIT = 60.0
"""Smallest timeout in seconds of a rank before its first iteration: it imports PyTorch, which takes long on a busy machine."""
_WARN_AFTER, _WARN_AT_START = 10.0, 40.0
"""Least seconds without a heartbeat for a warning: in an iteration, and before the first one, while a rank imports PyTorch."""
_WARN_FACTOR = 50.0
"""Multiple of the longest time without a heartbeat so far, in the same stage, for a warning."""


class HangDetector:
    """Detects that one rank hangs. It belongs to another process of the same host."""

    def __init__(self, rank: int, process: int, heartbeat: Heartbeat, timeout: float) -> None:
        """Begin to watch. `timeout` is the number of seconds without a heartbeat that a rank may take in an iteration."""
        self._rank = rank
        self._process = process
        self._heartbeat = heartbeat
        self._timeout = timeout
        self._progress = (0, 0)
        self._last_progress = time.monotonic()
        self._stage = "start"
        self._longest: dict[str, float] = {}
        """The longest time without a heartbeat so far, in seconds, by stage."""
        self._warned = False

    def skip(self, seconds: float) -> None:
        """Ignore a time in which the watching process did not run."""
        self._last_progress += seconds

    def find_fault(self, now: float) -> str | None:
        """Return the fault if the rank has had no heartbeat for too long. Print a warning once it takes much longer than before."""
        line = self._heartbeat
        elapsed, progress = now - self._last_progress, line.progress
        if progress != self._progress or (line.waiting and not self.is_stopped()):
            self._longest[self._stage] = max(elapsed, self._longest.get(self._stage, 0.0))
            self._progress, self._last_progress, self._stage, self._warned = progress, now, line.stage, False
        elif elapsed > (limit := self._timeout if line.iteration else max(self._timeout, _START_LIMIT)):
            what = "was stopped by a signal" if self.is_stopped() else "made no progress"
            where = f"{elapsed:.0f} s in {line.describe_location()}"
            return f"rank {self._rank} on host {host_name()} {what} for {where} (see runtime.timeout)"
        elif not self._warned and elapsed > self._warn_after():
            self._warned = True
            text = f"rank {self._rank} has made no progress for {elapsed:.0f} s in {line.describe_location()}; it is ended after {limit:g} s"
            print_warning(f"{text} (see runtime.timeout)")
        return None

    def report(self, fault: str) -> None:
        """Print the fault, before the rank prints its stack traces."""
        text = fault if self.is_stopped() else f"{fault}; its stack traces:"
        print_warning(text)

    def _warn_after(self) -> float:
        least = _WARN_AFTER if self._heartbeat.iteration else _WARN_AT_START
        return max(least, _WARN_FACTOR * self._longest.get(self._stage, 1.0))

    def is_stopped(self) -> bool:
        """Return True if a signal such as SIGSTOP has stopped the rank."""
        try:
            return Path(f"/proc/{self._process}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except (OSError, IndexError):
            return False
