"""Where metrics go; the terminal is one of these places. Rank 0 has loggers, the others have none.

`metrics.jsonl` is essential. All others are `Tolerant`: one that fails is told in one line, and training goes on without it.
"""

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from lockstep.run.folder import sync_folder
from lockstep.telemetry.tensorboard import EventFile

__all__ = ["JsonLines", "Logger", "TensorBoard", "Tolerant", "flat", "scalars"]


class Logger(Protocol):
    """Takes one object per iteration."""

    def write(self, metrics: Mapping[str, object]) -> None:
        """Keeps an iteration's metrics."""

    def flush(self) -> None:
        """From now on a kill of this process leaves what was written."""

    def close(self) -> None:
        """Leaves everything on disk."""


_Own = TypeVar("_Own", bound=Logger)


class Tolerant(Generic[_Own]):
    """A logger that may fail, whenever it is made or used: then a warning says so, once, and it is left out."""

    def __init__(self, name: str, make: Callable[[], _Own]) -> None:
        self._name = name
        self._logger: _Own | None = None
        try:
            self._logger = make()
        except Exception as error:
            self._leave_out(error)

    def do(self, act: Callable[[_Own], None]) -> None:
        """Does something with the logger, if it is still there."""
        if self._logger is not None:
            try:
                act(self._logger)
            except Exception as error:
                self._leave_out(error)

    def write(self, metrics: Mapping[str, object]) -> None:
        """See `Logger.write`."""
        self.do(lambda logger: logger.write(metrics))

    def flush(self) -> None:
        """See `Logger.flush`."""
        self.do(lambda logger: logger.flush())

    def close(self) -> None:
        """See `Logger.close`."""
        logger, self._logger = self._logger, None
        if logger is not None:
            try:
                logger.close()
            except Exception as error:
                self._warn(error, "")

    def _leave_out(self, error: Exception) -> None:
        self._warn(error, "; the run goes on without it")
        failed, self._logger = self._logger, None
        if failed is not None:
            with suppress(Exception):
                failed.close()

    def _warn(self, error: Exception, follows: str) -> None:
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"lockstep: {self._name}: {reason}{follows}", file=sys.stderr, flush=True)


class JsonLines:
    """`metrics.jsonl`: always written, the source of everything that is shown later."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        sync_folder(path.parent)

    def write(self, metrics: Mapping[str, object]) -> None:
        """Appends a line."""
        self._file.write(json.dumps(metrics) + "\n")

    def flush(self) -> None:
        """See `Logger.flush`."""
        self._file.flush()

    def sync(self) -> None:
        """Wait until all lines are on disk, where they survive a loss of power."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Scalars over environment steps, grouped as rollout/, train/ and time/."""

    def __init__(self, folder: Path, purge_step: int, config: Mapping[str, object]) -> None:
        """`purge_step` hides what a killed process wrote at or after that step. `config` is shown in the HParams tab."""
        self._events = EventFile(folder, purge_step)
        self._events.add_config(flat(config))

    def write(self, metrics: Mapping[str, object]) -> None:
        """Adds a point to every curve, all in one event."""
        self._events.add(int(str(metrics["env_steps"])), scalars(metrics))

    def flush(self) -> None:
        """See `Logger.flush`."""
        self._events.flush()

    def close(self) -> None:
        """Flushes and closes."""
        self._events.close()


def scalars(metrics: Mapping[str, object]) -> dict[str, float]:
    """The numbers among the metrics, under the names that they have in loggers: rollout/…, train/… and time/…."""
    return {_tag(name): value for name, value in metrics.items() if isinstance(value, (int, float))}


def flat(config: Mapping[str, object]) -> dict[str, bool | float | str]:
    """A config as `section.field`: true or false, numbers, and text for all else."""
    fields: dict[str, bool | float | str] = {}
    for section, content in config.items():
        if isinstance(content, Mapping):
            for name, value in content.items():
                plain = "none" if value is None else value
                fields[f"{section}.{name}"] = plain if isinstance(plain, (bool, int, float, str)) else json.dumps(plain)
    return fields


@functools.cache
def _tag(name: str) -> str:
    if name.startswith(("t_", "player_t_")) or name in {"fps", "seconds", "iteration", "env_steps", "frames", "lag"}:
        return f"time/{name}"
    return f"{'rollout' if name.startswith(('return', 'length', 'episodes')) else 'train'}/{name}"
