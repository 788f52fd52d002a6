"""Progress display of a run on the terminal: the live view, or one line per iteration."""

import sys
from collections.abc import Mapping
from time import perf_counter

from lockstep.run.folder import RunFolder
from lockstep.run.stop import set_live_view_active
from lockstep.telemetry.loggers import Logger
from lockstep.telemetry.screen import RunFacts, draw, read_run_facts
from lockstep.telemetry.status import RunStatus, number

__all__ = ["Bar", "Lines", "Screen", "display"]

_PERIOD = 0.5
"""Minimum seconds between two redraws: each redraw blocks training for a few milliseconds."""


class Lines:
    """Progress display that prints one plain line per iteration."""

    def __init__(self, iterations: int | None) -> None:
        """Create the display. `iterations` is the number of the last iteration; None if it is not known."""
        self._total = "" if iterations is None else f"/{iterations}"

    def write(self, metrics: Mapping[str, object]) -> None:
        """Print the line of one iteration."""
        warms_up = "warmup" in metrics
        update = "warming up" if warms_up else f"kl {_text(metrics, 'approx_kl')}  entropy {_text(metrics, 'entropy')}"
        steps, fps = (f"{number(metrics.get(name)) or 0.0:,.0f}" for name in ("env_steps", "fps"))
        mean = _text(metrics, "return_mean" if metrics.get("return_mean_20") is None else "return_mean_20")
        print(f"iteration {metrics['iteration']}{self._total}  steps {steps}  return {mean}  fps {fps}  {update}")

    def write_evaluation(self, row: Mapping[str, object]) -> None:
        """Print the line of one evaluation."""
        returns = f"return {_text(row, 'return_mean')}  sampled {_text(row, 'sampled_return_mean')}"
        print(f"evaluation of iteration {row['iteration']}  {returns}  episodes {row['episodes']}")

    def flush(self) -> None:
        """Flush stdout, which is buffered when it is a pipe."""
        sys.stdout.flush()

    def close(self) -> None:
        """Do nothing."""


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
        from rich.text import Text

        status.update()
        console = self.console
        rows = draw(status, about_run, state, console.width, console.options.ascii_only).split()
        self._erase_wrapped()
        self._drawn = Text("\n").join(rows[: max(1, console.height - 1)])
        # the cursor ends at the left of an empty row: its position stays known even if the terminal wraps the rows above
        self._live.update(self._drawn + "\n", refresh=True)

    def close(self) -> None:
        """Stop redrawing and leave the last view on the screen."""
        set_live_view_active(False)
        self._erase_wrapped()
        self._live.update(self._drawn)
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
        self._screen = Screen()
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
            self._screen.show(self._about, self._status)
            self._draw_at = perf_counter() + _PERIOD

    def close(self) -> None:
        """Redraw a last time and leave the view on the screen."""
        self._screen.show(self._about, self._status)
        self._screen.close()


def display(kind: str, folder: RunFolder, iterations: int) -> list[Logger]:
    """Return the display for `run.progress` (`kind`) as a list of at most one logger.

    `bar` is the live view, `lines` prints one line per iteration, `auto` means `bar` on a terminal and `lines`
    otherwise, and `off` means no display.
    """
    if kind == "auto":
        kind = "bar" if sys.stderr.isatty() and sys.stdout.isatty() else "lines"
    if kind == "bar":
        return [Bar(folder)]
    return [Lines(iterations)] if kind == "lines" else []


def _text(metrics: Mapping[str, object], name: str) -> str:
    value = number(metrics.get(name))
    return "-" if value is None else f"{value:.4g}"
