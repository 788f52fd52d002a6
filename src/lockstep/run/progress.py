"""What the terminal shows while a run goes on."""

import sys
from collections.abc import Mapping
from typing import Protocol

__all__ = ["Bar", "Display", "Lines", "Nothing", "display"]


class Display(Protocol):
    """Shows iterations as they come."""

    def show(self, metrics: Mapping[str, object], iterations: int) -> None:
        """Shows an iteration's metrics; `iterations` is the run's last one."""

    def close(self) -> None:
        """Leaves the terminal as it was."""


class Nothing:
    """Shows nothing: `progress: off`, and ranks other than 0."""

    def show(self, metrics: Mapping[str, object], iterations: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines:
    """One plain line per iteration."""

    def show(self, metrics: Mapping[str, object], iterations: int) -> None:
        """Prints the line."""
        print(
            f"iteration {metrics['iteration']}/{iterations}  steps {metrics['env_steps']:,}  "
            f"return {_return(metrics)}  fps {metrics['fps']:,.0f}  "
            f"kl {_number(metrics['approx_kl'])}  entropy {_number(metrics['entropy'])}",
            flush=True,
        )

    def close(self) -> None:
        """Nothing."""


class Bar:
    """A bar with the return, steps per second and the time left."""

    def __init__(self, first: int, iterations: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task("training", total=iterations, completed=first)
        self._progress.start()

    def show(self, metrics: Mapping[str, object], iterations: int) -> None:
        """Moves the bar."""
        text = f"return {_return(metrics):>8}  {metrics['fps']:>9,.0f} steps/s"
        self._progress.update(self._task, completed=float(str(metrics["iteration"])), description=text)

    def close(self) -> None:
        """Leaves the last state on the screen."""
        self._progress.stop()


def display(kind: str, first: int, iterations: int) -> Display:
    """`auto` is a bar on a terminal and lines elsewhere."""
    if kind == "auto":
        kind = "bar" if sys.stderr.isatty() and sys.stdout.isatty() else "lines"
    if kind == "bar":
        return Bar(first, iterations)
    return Lines() if kind == "lines" else Nothing()


def _number(value: object) -> str:
    return "-" if not isinstance(value, (int, float)) else f"{value:.4g}"


def _return(metrics: Mapping[str, object]) -> str:
    recent = metrics["return_mean_20"]
    return _number(metrics["return_mean"] if recent is None else recent)
