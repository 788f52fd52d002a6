"""What the terminal shows while a run goes on."""

import sys
from collections.abc import Mapping

from lockstep.run.loggers import Logger

__all__ = ["Bar", "Lines", "display"]

_DRAWINGS = 2
"""Of the bar per second: each takes milliseconds, that training waits for."""


class Lines:
    """One plain line per iteration."""

    def __init__(self, iterations: int) -> None:
        """`iterations` is the number of the run's last one."""
        self._iterations = iterations

    def write(self, metrics: Mapping[str, object]) -> None:
        """Prints the line."""
        trained = (
            "warming up"
            if "warmup" in metrics
            else f"kl {_number(metrics['approx_kl'])}  entropy {_number(metrics['entropy'])}"
        )
        print(
            f"iteration {metrics['iteration']}/{self._iterations}  steps {metrics['env_steps']:,}  "
            f"return {_return(metrics)}  fps {metrics['fps']:,.0f}  {trained}"
        )

    def flush(self) -> None:
        """Shows what was printed, in a pipe too."""
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing."""


class Bar:
    """A bar with the return, steps per second and the time left."""

    def __init__(self, first: int, iterations: int) -> None:
        """Begins at iteration `first` of `iterations`."""
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
        self._progress = Progress(*columns, console=Console(stderr=True), refresh_per_second=_DRAWINGS)
        self._task = self._progress.add_task("training", total=iterations, completed=first)
        self._progress.start()

    def write(self, metrics: Mapping[str, object]) -> None:
        """Moves the bar, which is drawn at its own pace."""
        text = f"return {_return(metrics):>8}  {metrics['fps']:>9,.0f} steps/s"
        self._progress.update(self._task, completed=float(str(metrics["iteration"])), description=text)

    def flush(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Leaves the last state on the screen."""
        self._progress.stop()


def display(kind: str, first: int, iterations: int) -> list[Logger]:
    """`auto` is a bar on a terminal and lines elsewhere; `off` is nothing."""
    if kind == "auto":
        kind = "bar" if sys.stderr.isatty() and sys.stdout.isatty() else "lines"
    if kind == "bar":
        return [Bar(first, iterations)]
    return [Lines(iterations)] if kind == "lines" else []


def _number(value: object) -> str:
    return "-" if not isinstance(value, (int, float)) else f"{value:.4g}"


def _return(metrics: Mapping[str, object]) -> str:
    recent = metrics["return_mean_20"]
    return _number(metrics["return_mean"] if recent is None else recent)
