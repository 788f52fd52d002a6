"""`lockstep watch`: how a run is going that was started elsewhere."""

import argparse
import sys
import time
from collections.abc import Sequence

from lockstep.cli.arguments import Arguments
from lockstep.processes.exit_codes import DONE, FAILED, INTERRUPTED, PREEMPTED
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate
from lockstep.telemetry.attempts import Start, read_starts
from lockstep.telemetry.progress import Lines, Screen
from lockstep.telemetry.screen import about, clock, draw
from lockstep.telemetry.status import RunStatus
from lockstep.telemetry.tail import MetricsTail

__all__ = ["main", "read"]

_PERIOD = 0.5
"""Seconds between two looks."""
_LATE = 5.0
"""Seconds without an iteration after which that is said."""
_CODES = {"done": DONE, "stopped": PREEMPTED, "failed": FAILED}


def main(argv: Sequence[str]) -> int:
    """Shows the run until it ends, and returns how: 0 done, 75 stopped, 1 failed or killed. Raises ValueError if there is no such run."""
    own = read(argv)
    folder = RunFolder.open(locate(own.run))
    # broken files are reported before anything is drawn
    about(folder)
    folder.metrics()
    if own.once:
        return _once(folder)
    try:
        return _on_terminal(folder) if sys.stdout.isatty() and sys.stderr.isatty() else _in_lines(folder)
    except KeyboardInterrupt:
        return INTERRUPTED


def read(argv: Sequence[str]) -> argparse.Namespace:
    """The command line. Raises ValueError in one line for bad words."""
    parser = Arguments(
        "watch",
        "Shows how a run is going that was started elsewhere: the view of `lockstep train`, or lines where the output is piped. It ends "
        "with the run; Ctrl-C ends it alone. Exit code 0 when the run is done, 75 when it was stopped, 1 when it failed or was killed.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    parser.add_argument("--once", action="store_true", help="show the state of now and end, with exit code 0")
    return parser.read(argv)


class _Watch:
    """A run as its folder shows it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._follower = MetricsTail(folder.path / "metrics.jsonl")
        self._gone = 0
        self.standing = RunStatus()

    def look(self) -> list[dict[str, object]]:
        """Takes in what is new, and returns it."""
        rows, anew = self._follower.read()
        if anew:
            self.standing = RunStatus()
        for row in rows:
            self.standing.append(row)
        self.standing.update()
        return rows

    @property
    def ended(self) -> bool:
        """Whether nobody has carried the run at this and the last look. What follows on an end at once is no end."""
        used = self._folder.in_use()
        starts = read_starts(self._folder) if used is None else []
        goes_on = used if used is not None else not starts or starts[-1].ended is None
        self._gone = 0 if goes_on else self._gone + 1
        return self._gone > 1


def _on_terminal(folder: RunFolder) -> int:
    watch, screen, ended = _Watch(folder), Screen(), False
    try:
        while not ended:
            ended = watch.ended
            watch.look()
            screen.show(about(folder), watch.standing, "" if ended else _going(folder))
            time.sleep(0 if ended else _PERIOD)
    finally:
        screen.close()
    print(_ending(folder))
    return _code(folder)


def _in_lines(folder: RunFolder) -> int:
    """The newest iteration, then every one that comes."""
    watch, first = _Watch(folder), True
    while True:
        ended = watch.ended
        rows = watch.look()
        starts = read_starts(folder)
        lines = Lines(starts[-1].last if starts else None)
        for row in rows[-1:] if first else rows:
            if "iteration" in row:
                lines.write(row)
        first = first and not rows
        if ended:
            print(_ending(folder))
        lines.flush()
        if ended:
            return _code(folder)
        time.sleep(_PERIOD)


def _once(folder: RunFolder) -> int:
    from rich.console import Console

    watch, console = _Watch(folder), Console(highlight=False)
    ended = folder.in_use() is False
    watch.look()
    state = "" if ended else _going(folder)
    console.print(draw(watch.standing, about(folder), state, console.width, console.options.ascii_only))
    if ended:
        print(_ending(folder))
    return 0


def _newest(folder: RunFolder) -> Start | None:
    starts = read_starts(folder)
    return starts[-1] if starts else None


def _ending(folder: RunFolder) -> str:
    """What is to be said of a run that nobody carries."""
    start = _newest(folder)
    if start is None or start.how == "done":
        return f"done: {folder.path}" if start else f"nobody carries {folder.path} now"
    told = {"stopped": f"stopped by {start.why}", "failed": f"failed: {start.why}", None: "killed, or its host is gone"}
    return f"{told[start.how]}\ngo on with: lockstep resume {folder.path}"


def _going(folder: RunFolder) -> str:
    """What is to be said of a run that goes on."""
    start = _newest(folder)
    if start is None or start.ended is not None:
        return "starting"
    try:
        since = time.time() - (folder.path / "metrics.jsonl").stat().st_mtime
    except OSError:
        return ""
    return f"the last iteration was {clock(since)} ago" if since > _LATE else ""


def _code(folder: RunFolder) -> int:
    start = _newest(folder)
    return 0 if start is None else _CODES.get(start.how or "", 1)
