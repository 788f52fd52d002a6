"""What the terminal shows while a run goes on."""

import sys
from collections.abc import Mapping
from time import perf_counter

from lockstep.run.folder import RunFolder
from lockstep.run.stop import over_a_drawing
from lockstep.telemetry.loggers import Logger
from lockstep.telemetry.screen import About, about, draw
from lockstep.telemetry.status import RunStatus, number

__all__ = ["Bar", "Lines", "Screen", "display"]

_PERIOD = 0.5
"""Seconds between two drawings at least: each takes a few milliseconds, that training waits for."""


class Lines:
    """One plain line per iteration."""

    def __init__(self, iterations: int | None) -> None:
        """`iterations` is the number of the run's last one, if it is known."""
        self._of = "" if iterations is None else f"/{iterations}"

    def write(self, metrics: Mapping[str, object]) -> None:
        """Prints the line."""
        warms_up = "warmup" in metrics
        trained = (
            "warming up" if warms_up else f"kl {_shown(metrics, 'approx_kl')}  entropy {_shown(metrics, 'entropy')}"
        )
        steps, rate = (f"{number(metrics.get(name)) or 0.0:,.0f}" for name in ("env_steps", "fps"))
        mean = _shown(metrics, "return_mean" if metrics.get("return_mean_20") is None else "return_mean_20")
        print(f"iteration {metrics['iteration']}{self._of}  steps {steps}  return {mean}  fps {rate}  {trained}")

    def flush(self) -> None:
        """Shows what was printed, in a pipe too."""
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing."""


class Screen:
    """A place on the terminal, that is drawn over and over."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self.console = Console(stderr=True, highlight=False)
        self._live = Live(console=self.console, auto_refresh=False)
        self._live.start()
        self._shown = Text()
        self.console.show_cursor(True)  # a kill could not bring it back
        over_a_drawing(self.console.is_terminal)

    def show(self, known: About, standing: RunStatus, state: str = "") -> None:
        """Draws."""
        from rich.text import Text

        standing.settle()
        console = self.console
        rows = draw(standing, known, state, console.width, console.options.ascii_only).split()
        self._erase_wrapped()
        self._shown = Text("\n").join(rows[: max(1, console.height - 1)])
        # with the cursor at the left of an empty row, its place is known after the terminal has wrapped the rows above
        self._live.update(self._shown + "\n", refresh=True)

    def close(self) -> None:
        """Leaves the last drawing."""
        over_a_drawing(False)
        self._erase_wrapped()
        self._live.update(self._shown)
        self._live.stop()

    def _erase_wrapped(self) -> None:
        """Erase the rows that the last drawing has gained: a terminal that became narrower has wrapped its lines."""
        from rich.control import Control
        from rich.segment import ControlType

        width = self.console.width
        gained = sum(max(0, row.cell_len - 1) // width for row in self._shown.split())
        erase = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
        self.console.control(Control(*erase * gained))


class Bar:
    """The live view of a run that is trained here."""

    def __init__(self, folder: RunFolder) -> None:
        """Begins with what the run's metrics say so far."""
        self._known, self._standing = about(folder), RunStatus()
        for row in folder.readable_metrics():
            self._standing.take(row)
        self._screen = Screen()
        self._screen.show(self._known, self._standing)
        self._draw_at = 0.0

    def write(self, metrics: Mapping[str, object]) -> None:
        """Keeps them for the next drawing."""
        self._standing.take(metrics)

    def flush(self) -> None:
        """Draws, if it is time."""
        if perf_counter() >= self._draw_at:
            self._screen.show(self._known, self._standing)
            self._draw_at = perf_counter() + _PERIOD

    def close(self) -> None:
        """Leaves the last state on the screen."""
        self._screen.show(self._known, self._standing)
        self._screen.close()


def display(kind: str, folder: RunFolder, iterations: int) -> list[Logger]:
    """`auto` is the live view on a terminal and lines elsewhere; `off` is nothing."""
    if kind == "auto":
        kind = "bar" if sys.stderr.isatty() and sys.stdout.isatty() else "lines"
    if kind == "bar":
        return [Bar(folder)]
    return [Lines(iterations)] if kind == "lines" else []


def _shown(metrics: Mapping[str, object], name: str) -> str:
    value = number(metrics.get(name))
    return "-" if value is None else f"{value:.4g}"
