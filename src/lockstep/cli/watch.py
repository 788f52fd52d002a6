"""`lockstep watch`: show the progress of a run that another process trains."""

import argparse
import sys
import time
from collections.abc import Sequence

from lockstep.cli.arguments import Arguments
from lockstep.processes.exit_codes import DONE, FAILED, INTERRUPTED, PREEMPTED
from lockstep.run.evaluations import EVALUATIONS
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate
from lockstep.telemetry.attempts import Start, read_starts
from lockstep.telemetry.progress import Lines, Screen
from lockstep.telemetry.screen import clock, draw, read_run_facts
from lockstep.telemetry.status import RunStatus
from lockstep.telemetry.tail import MetricsTail

__all__ = ["main", "read"]

_PERIOD = 0.5
"""Seconds between two updates of the display."""
_LATE = 5.0
"""Age of the last iteration, in seconds, from which the display shows the age."""
_EXIT_CODES = {"done": DONE, "stopped": PREEMPTED, "failed": FAILED}


def main(argv: Sequence[str]) -> int:
    """Show the run until it ends. Return the exit code: 0 done, 75 stopped, 1 failed or killed, 130 after Ctrl-C."""
    args = read(argv)
    folder = RunFolder.open(locate(args.run))
    # raises for broken files before anything is drawn
    read_run_facts(folder)
    folder.metrics()
    if args.once:
        return _print_once(folder)
    try:
        return _on_terminal(folder) if sys.stdout.isatty() and sys.stderr.isatty() else _in_lines(folder)
    except KeyboardInterrupt:
        return INTERRUPTED


def read(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Raises ValueError for bad input. The message is one line."""
    parser = Arguments(
        "watch",
        "Follows a run that was started elsewhere: shows the display of `lockstep train`, or lines if the output is piped. Ends with the "
        "run; Ctrl-C ends only this command. Exit code 0 when the run is done, 75 when it was stopped, 1 when it failed or was killed.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder, or its name in runs/")
    parser.add_argument("--once", action="store_true", help="print the current state and exit with code 0")
    return parser.read(argv)


class _Watch:
    """Status of a run, read from its folder."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._tail = MetricsTail(folder.path / "metrics.jsonl")
        self._evaluations = MetricsTail(folder.path / EVALUATIONS)
        self._idle_checks = 0
        self.status = RunStatus()
        self.evaluations: list[dict[str, object]] = []
        """Evaluations that the last `update` read."""

    def update(self) -> list[dict[str, object]]:
        """Read the new rows of the metrics, add them to the status, and return them."""
        rows, restarted = self._tail.read()
        if restarted:
            self.status = RunStatus()
            self._evaluations = MetricsTail(self._folder.path / EVALUATIONS)
        for row in rows:
            self.status.append(row)
        self.evaluations = self._evaluations.read()[0]
        for row in self.evaluations:
            self.status.append_evaluation(row)
        self.status.update()
        return rows

    def check_ended(self) -> bool:
        """Return True if no process was training the run at this call and at the one before.

        Two calls are needed so that a run that is resumed directly after its end does not count as ended.
        """
        in_use = self._folder.in_use()
        # without file locks, only the last start shows if the run has ended; a killed run then counts as running
        starts = read_starts(self._folder) if in_use is None else []
        running = in_use if in_use is not None else not starts or starts[-1].ended is None
        self._idle_checks = 0 if running else self._idle_checks + 1
        return self._idle_checks > 1


def _on_terminal(folder: RunFolder) -> int:
    watch, screen, ended = _Watch(folder), Screen(), False
    try:
        while not ended:
            ended = watch.check_ended()
            watch.update()
            screen.show(read_run_facts(folder), watch.status, "" if ended else _running_text(folder))
            time.sleep(0 if ended else _PERIOD)
    finally:
        screen.close()
    print(_end_text(folder))
    return _exit_code(folder)


def _in_lines(folder: RunFolder) -> int:
    """Print one line for the newest iteration, then one for every new one, until the run ends. Return the exit code."""
    watch, first = _Watch(folder), True
    while True:
        ended = watch.check_ended()
        rows = watch.update()
        starts = read_starts(folder)
        lines = Lines(starts[-1].last if starts else None)
        for row in rows[-1:] if first else rows:
            if "iteration" in row:
                lines.write(row)
        for row in watch.evaluations[-1:] if first else watch.evaluations:
            lines.write_evaluation(row)
        first = first and not rows
        if ended:
            print(_end_text(folder))
        lines.flush()
        if ended:
            return _exit_code(folder)
        time.sleep(_PERIOD)


def _print_once(folder: RunFolder) -> int:
    from rich.console import Console

    watch, console = _Watch(folder), Console(highlight=False)
    ended = folder.in_use() is False
    watch.update()
    state = "" if ended else _running_text(folder)
    console.print(draw(watch.status, read_run_facts(folder), state, console.width, console.options.ascii_only))
    if ended:
        print(_end_text(folder))
    return 0


def _last_start(folder: RunFolder) -> Start | None:
    starts = read_starts(folder)
    return starts[-1] if starts else None


def _end_text(folder: RunFolder) -> str:
    start = _last_start(folder)
    if start is None or start.how == "done":
        return f"done: {folder.path}" if start else f"no process is running {folder.path}"
    texts = {
        "stopped": f"stopped by {start.why}",
        "failed": f"failed: {start.why}",
        None: "killed, or its host is down",
    }
    return f"{texts[start.how]}\nresume with: lockstep resume {folder.path}"


def _running_text(folder: RunFolder) -> str:
    """Return the state of a run that has not ended, as text for the line "state".

    That is `starting` until all ranks are connected, or the age of the last iteration if it is above `_LATE`, else
    empty.
    """
    start = _last_start(folder)
    if start is None or start.ended is not None:
        return "starting"
    try:
        since = time.time() - (folder.path / "metrics.jsonl").stat().st_mtime
    except OSError:
        return ""
    return f"the last iteration was {clock(since)} ago" if since > _LATE else ""


def _exit_code(folder: RunFolder) -> int:
    start = _last_start(folder)
    return 0 if start is None else _EXIT_CODES.get(start.how or "", 1)
