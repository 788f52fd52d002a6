"""Progress display of a run on the terminal or in a notebook: the live view, or lines."""

import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

from lockstep.run.folder import RunFolder
from lockstep.run.settings import RunConfig
from lockstep.run.stop import asked_to_stop, record_signal, set_live_view_active
from lockstep.telemetry.loggers import Logger
from lockstep.telemetry.notebook import NotebookView, in_notebook
from lockstep.telemetry.screen import RunFacts, clock, draw, read_run_facts
from lockstep.telemetry.status import RecentReturn, RunStatus, number

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["Bar", "Lines", "Screen", "display"]

_PERIOD = 0.5
"""Minimum seconds between two redraws: each redraw blocks training for a few milliseconds."""


class Lines:
    """Progress display that prints plain lines: for the first iteration, then every few seconds, for the last one, and when the goal is reached."""

    def __init__(self, last: int | None, goal: float | None, log_every: float) -> None:
        """Create the display.

        `last` is the number of the last iteration, None if it is not known. `goal` is the mean return of 20 episodes that gets a line
        of its own, None without one. `log_every` is the number of seconds between two lines; 0 means a line per iteration.
        """
        self.last = last
        self._goal = goal
        self._log_every = log_every
        self._due = 0.0
        self._status, self._return = RunStatus(), RecentReturn()
        self._pending: list[Mapping[str, object]] = []
        self._printed: Mapping[str, object] = {}

    def skip(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Add the metrics of earlier iterations, oldest first, without printing them."""
        for row in rows:
            self._status.append(row)
            self._return.add(row)
        if any(map(self._reaches_goal, rows)):
            self._goal = None

    def write(self, metrics: Mapping[str, object]) -> None:
        """Store the metrics for the next `flush`."""
        self._pending.append(metrics)

    def write_evaluation(self, row: Mapping[str, object]) -> None:
        """Print the line of one evaluation."""
        returns = f"return {_text(row.get('return_mean'))}  sampled {_text(row.get('sampled_return_mean'))}"
        _print(f"evaluation of iteration {row['iteration']}  {returns}  episodes {row['episodes']}")

    def flush(self) -> None:
        """Print the lines that are due."""
        rows, self._pending = self._pending, []
        if not rows:
            return
        for row in rows:
            self._status.append(row)
        self._status.update()
        due = perf_counter() >= self._due
        for row in rows:
            self._return.add(row)
            solves = self._reaches_goal(row)
            if solves or not self._log_every or (due and row is rows[-1]):
                _print(self._line(row) + (f"  solved: goal {self._goal:.4g}" if solves else ""))
                self._printed = row
            self._goal = None if solves else self._goal
        if due:
            self._due = perf_counter() + self._log_every

    def close(self) -> None:
        """Print the line of the newest iteration, if it has not been printed."""
        self.flush()
        if self._status.newest != self._printed:
            _print(self._line(self._status.newest, ended=True))

    def _reaches_goal(self, row: Mapping[str, object]) -> bool:
        mean = number(row.get("return_mean_20"))
        return self._goal is not None and mean is not None and mean >= self._goal

    def _line(self, row: Mapping[str, object], ended: bool = False) -> str:
        iteration = int(number(row["iteration"]) or 0)
        share, left = f"/{self.last}  {100 * iteration // self.last}%" if self.last else "", ""
        if (
            self.last
            and not (ended and iteration < self.last)
            and (seconds := self._status.seconds_left(self.last)) is not None
        ):
            left = f"  {clock(seconds)} left"
        steps, fps = (f"{number(row.get(name)) or 0.0:,.0f}" for name in ("env_steps", "fps"))
        warmup = "  warming up" if "warmup" in row else ""
        count = number(row.get("env_faults"))
        faults = f"  env_faults {count:.0f}" if count else ""
        return f"iteration {iteration}{share}  steps {steps}  return {_text(self._return.mean)}  fps {fps}{left}{warmup}{faults}"


class Screen:
    """Region of the terminal that is redrawn in place, on stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self.console = Console(stderr=True, highlight=False)
        self._live = Live(console=self.console, auto_refresh=False)
        self._live.start()
        self._drawn = Text()
        self.console.show_cursor(True)  # rich hides the cursor, and a killed process could not show it again
        set_live_view_active(self.console.is_terminal)

    def show(self, about_run: RunFacts, status: RunStatus, state: str = "") -> None:
        """Update `status` with its pending rows and redraw the view.

        `state` is the text of the line "state", which is omitted if the text is empty.
        """
        status.update()
        console = self.console
        self.show_text(draw(status, about_run, state, console.width, console.options.ascii_only))

    def show_text(self, view: "Text") -> None:
        """Redraw the region with `view`, whose lines are no wider than the terminal."""
        from rich.text import Text

        self._erase_wrapped()
        self._drawn = Text("\n").join(view.split()[: max(1, self.console.height - 1)])
        # the cursor ends at the left of an empty row: its position stays known even if the terminal wraps the rows above
        self._live.update(self._drawn + "\n", refresh=True)

    def close(self) -> None:
        """Stop redrawing and leave the last view on the screen."""
        set_live_view_active(False)
        try:
            self._erase_wrapped()
            self._live.update(self._drawn)
        finally:  # also if the terminal was closed: it gives sys.stdout and sys.stderr back
            self._live.stop()

    def _erase_wrapped(self) -> None:
        """Erase the additional rows of the last view: a terminal that has become narrower wraps long lines."""
        from rich.control import Control
        from rich.segment import ControlType

        width = self.console.width
        wrapped = sum(max(0, row.cell_len - 1) // width for row in self._drawn.split())
        erase = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
        self.console.control(Control(*erase * wrapped))


class Bar:
    """Live view of a run that is being trained in this process."""

    def __init__(self, folder: RunFolder) -> None:
        """Load the metrics that are already in the run folder, and draw the first view."""
        self._about, self._status = read_run_facts(folder), RunStatus()
        for row in folder.readable_metrics():
            self._status.append(row)
        for row in folder.evaluations():
            self._status.append_evaluation(row)
        self._screen: Screen | NotebookView = NotebookView() if in_notebook() else Screen()
        self._screen.show(self._about, self._status)
        self._draw_at = 0.0

    def write(self, metrics: Mapping[str, object]) -> None:
        """Store the metrics for the next redraw."""
        self._status.append(metrics)

    def write_evaluation(self, row: Mapping[str, object]) -> None:
        """Store the evaluation for the next redraw."""
        self._status.append_evaluation(row)

    def flush(self) -> None:
        """Redraw the view if the last redraw was at least `_PERIOD` seconds ago."""
        if perf_counter() >= self._draw_at:
            with suppress(OSError):  # the terminal was closed: the signal SIGHUP says so
                self._screen.show(self._about, self._status)
            self._draw_at = perf_counter() + _PERIOD

    def close(self) -> None:
        """Redraw a last time and leave the view on the screen."""
        with suppress(OSError):
            self._screen.show(self._about, self._status)
        with suppress(OSError):
            self._screen.close()


def display(config: RunConfig, folder: RunFolder, last: int, solved: bool) -> list[Logger]:
    """Return the display for `run.progress` as a list of at most one logger.

    `bar` is the live view, `lines` prints lines, `auto` means `bar` on a terminal or in a notebook and `lines` otherwise, and `off` means no display.
    `last` is the number of the last iteration, and `solved` is True if `run.solved_return` has been reached.
    """
    kind = config.progress
    if kind == "auto":
        kind = "bar" if (sys.stderr.isatty() and sys.stdout.isatty()) or in_notebook() else "lines"
    if kind == "bar":
        return [Bar(folder)]
    return [Lines(last, None if solved else config.solved_return, config.log_every)] if kind == "lines" else []


def _print(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:  # the reader of the output has ended
        if not asked_to_stop():
            record_signal(signal.SIGPIPE)
    except OSError:  # stdout is a file on a full disk, or a terminal that was closed, for example: training continues
        pass


def _text(metric: object) -> str:
    value = number(metric)
    return "-" if value is None else f"{value:.4g}"
