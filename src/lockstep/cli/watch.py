"""`lockstep watch`: show the progress of one run, or of all runs, that other processes train."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lockstep.cli.arguments import Arguments
from lockstep.cli.queue import wait_for_job
from lockstep.cli.runs import table
from lockstep.experiment.execute import open_run
from lockstep.processes.exit_codes import DONE, INTERRUPTED
from lockstep.run.evaluations import EVALUATIONS
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate
from lockstep.run.settings import RunConfig
from lockstep.telemetry.attempts import Start, read_starts
from lockstep.telemetry.listing import list_runs
from lockstep.telemetry.progress import Lines, Screen
from lockstep.telemetry.screen import clock, draw, read_run_facts
from lockstep.telemetry.status import RunStatus
from lockstep.telemetry.tail import MetricsTail

__all__ = ["main", "read"]

_PERIOD = 0.5
"""Seconds between two updates of the display."""
_LATE = 5.0
"""Age of the last iteration, in seconds, from which the display shows the age."""
_TABLE_PERIOD = 2.0
"""Seconds between two updates of the table of all runs, for which many files are read."""


def main(argv: Sequence[str]) -> int:
    """Show one run until it is done, or all runs. Return the exit code: 0 done, 130 after Ctrl-C."""
    args = read(argv)
    on_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    try:
        if args.run is None:
            return _show_all(Path(RunConfig.folder), args.once or not on_terminal)
        if not wait_for_job(args.run, args.once):
            return DONE
        # both raise for broken files before anything is drawn
        folder, _ = open_run(locate(args.run))
        folder.metrics()
        if args.once:
            return _print_once(folder)
        return _on_terminal(folder) if on_terminal else _in_lines(folder)
    except KeyboardInterrupt:
        return INTERRUPTED


def read(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Raises ValueError for bad input. The message is one line."""
    parser = Arguments(
        "watch",
        "Follows a run that was started elsewhere, also one that waits in the queue of a cluster: shows the display of `lockstep train`, or lines if the output is piped. If the run is "
        "interrupted, waits until it is resumed; ends when the run is done. Ctrl-C ends only this command. Without RUN, shows a table of "
        "all runs in runs/ that are being trained, once if the output is piped.",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="run folder, or its name in runs/")
    parser.add_argument("--once", action="store_true", help="print the current state and exit with code 0")
    return parser.read(argv)


def _show_all(root: Path, once: bool) -> int:
    """Show a table of the runs in `root` that are being trained: print it `once`, or update it until Ctrl-C."""
    if once:
        print(_running_table(root))
        return DONE
    from rich.text import Text

    screen = Screen()
    try:
        while True:
            view = Text(_running_table(root))
            rows = view.split()
            for row in rows:
                row.truncate(screen.console.width, overflow="ellipsis")
            screen.show_text(Text("\n").join(rows))
            time.sleep(_TABLE_PERIOD)
    finally:
        screen.close()


def _running_table(root: Path) -> str:
    listed = list(list_runs(root, "running"))
    return table(listed, root) if listed else f"no run in {root} is being trained"


class _Watch:
    """Status of a run, read from its folder."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._tail = MetricsTail(folder.path / "metrics.jsonl")
        self._evaluations = MetricsTail(folder.path / EVALUATIONS)
        self._idle_checks = 0
        self._ended_starts = 0
        self.status = RunStatus()
        self.restarted = False
        """True if the rows of the last `update` begin with the first iteration."""
        self.evaluations: list[dict[str, object]] = []
        """Evaluations that the last `update` read."""

    def update(self) -> list[dict[str, object]]:
        """Read the new rows of the metrics, add them to the status, and return them."""
        rows, self.restarted = self._tail.read()
        if self.restarted:
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
        in_use, starts = self._folder.in_use(), read_starts(self._folder)
        # without file locks, only the last start shows if the run has ended; a killed run then counts as running
        running = in_use if in_use is not None else not starts or starts[-1].ended is None
        self._idle_checks = 0 if running else self._idle_checks + 1
        if self._idle_checks > 1:
            self._ended_starts = len(starts)
        return self._idle_checks > 1

    def running_text(self) -> str:
        """Return the state of a run that has not ended, as text for the line "state".

        That is `starting` until all ranks are connected, or the age of the last iteration if it is above `_LATE`, else
        empty.
        """
        starts = read_starts(self._folder)
        if len(starts) == self._ended_starts or starts[-1].ended is not None:
            return "starting"
        try:
            since = time.time() - (self._folder.path / "metrics.jsonl").stat().st_mtime
        except OSError:
            return "no iteration is done yet"
        return f"the last iteration was {clock(since)} ago" if since > _LATE else ""


def _on_terminal(folder: RunFolder) -> int:
    watch, screen, done = _Watch(folder), Screen(), False
    try:
        while not done:
            ended = watch.check_ended()
            done = ended and _is_done(folder)
            watch.update()
            waiting = f"waiting for lockstep resume: {_outcome(folder)}" if ended else watch.running_text()
            screen.show(read_run_facts(folder), watch.status, "" if done else waiting)
            time.sleep(0 if done else _PERIOD)
    finally:
        screen.close()
    print(_end_text(folder))
    return DONE


def _in_lines(folder: RunFolder) -> int:
    """Print lines as `lockstep train` does, beginning with the newest iteration, and a line when the run is interrupted or resumed."""
    watch, lines, interrupted = _Watch(folder), _new_lines(folder), False
    if not folder.last_metrics() and folder.in_use() is not False:
        print(
            f"waiting for the first iteration of {folder}: ranks are starting",
            flush=True,
        )
    while True:
        ended = watch.check_ended()
        if interrupted and not ended:
            print("resumed", flush=True)
        rows = watch.update()
        if watch.restarted:
            lines = _new_lines(folder)
            lines.skip(rows[:-1])
        lines.last = read_run_facts(folder).last
        for row in rows[-1:] if watch.restarted else rows:
            if "iteration" in row:
                lines.write(row)
        lines.flush()
        for row in watch.evaluations[-1:] if watch.restarted else watch.evaluations:
            lines.write_evaluation(row)
        if ended and not interrupted:
            lines.close()
            print(_end_text(folder), flush=True)
            if _is_done(folder):
                return DONE
        interrupted = ended
        time.sleep(_PERIOD)


def _new_lines(folder: RunFolder) -> Lines:
    facts = read_run_facts(folder)
    return Lines(facts.last, facts.goal, facts.log_every)


def _print_once(folder: RunFolder) -> int:
    from rich.console import Console

    watch, console = _Watch(folder), Console(highlight=False)
    ended = folder.in_use() is False
    watch.update()
    state = "" if ended else watch.running_text()
    console.print(draw(watch.status, read_run_facts(folder), state, console.width, console.options.ascii_only))
    if ended:
        print(_end_text(folder))
    return 0


def _last_start(folder: RunFolder) -> Start | None:
    starts = read_starts(folder)
    return starts[-1] if starts else None


def _is_done(folder: RunFolder) -> bool:
    """Return True if a run that no process trains is done, or was trained by an older lockstep, which recorded no starts."""
    start = _last_start(folder)
    return start is None or start.how == "done"


def _outcome(folder: RunFolder) -> str:
    start = _last_start(folder)
    if start is not None and start.how == "done":
        return f"done: {folder}"
    if (why := folder.why_pruned()) is not None:
        return f"pruned by its search: {why}"
    if start is None:
        return f"no process is running {folder}"
    texts = {
        "stopped": f"stopped by {start.why}",
        "failed": f"failed: {start.why}",
        None: "killed, or its host is down",
    }
    return texts[start.how]


def _end_text(folder: RunFolder) -> str:
    hint = "" if _is_done(folder) else f"\nresume with: {folder.resume_command()}"
    return _outcome(folder) + hint
