"""Loggers: the destinations of metrics, including the terminal. Only rank 0 has loggers.

`metrics.jsonl` is essential. Other loggers are wrapped in `OptionalLogger`, except for the progress display: if one fails, a
line on stderr reports it, and training continues without it.
"""

import functools
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from lockstep.files import open_to_append, sync_folder
from lockstep.messages import counted, one_line, print_warning
from lockstep.telemetry.tensorboard import EventFile

__all__ = ["JsonLines", "Logger", "OptionalLogger", "TensorBoard", "evaluation_scalars", "flatten_config", "scalars"]


class Logger(Protocol):
    """Destination of metrics. It receives one mapping per iteration."""

    def write(self, metrics: Mapping[str, object]) -> None:
        """Log the metrics of one iteration."""

    def write_evaluation(self, row: Mapping[str, object]) -> None:
        """Log one evaluation during training, a row of evaluations.jsonl. It may follow metrics of later iterations."""

    def flush(self) -> None:
        """Hand everything written so far to the operating system, so that killing this process loses none of it."""

    def close(self) -> None:
        """Write everything to disk and release all resources."""


_LoggerT = TypeVar("_LoggerT", bound=Logger)


class OptionalLogger(Generic[_LoggerT]):
    """Wrapper of a logger that may fail when it is created or used.

    The first error is printed as a warning, then the logger is dropped.
    """

    def __init__(self, name: str, make: Callable[[], _LoggerT]) -> None:
        """Call `make` to create the logger; `name` is its name in the warning."""
        self._name = name
        self._logger: _LoggerT | None = None
        try:
            self._logger = make()
        except Exception as error:
            self._drop(error)

    def do(self, action: Callable[[_LoggerT], None]) -> None:
        """Call `action` with the logger, unless the logger was dropped."""
        if self._logger is not None:
            try:
                action(self._logger)
            except Exception as error:
                self._drop(error)

    def write(self, metrics: Mapping[str, object]) -> None:
        """See `Logger.write`."""
        self.do(lambda logger: logger.write(metrics))

    def write_evaluation(self, row: Mapping[str, object]) -> None:
        """See `Logger.write_evaluation`."""
        self.do(lambda logger: logger.write_evaluation(row))

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

    def _drop(self, error: Exception) -> None:
        self._warn(error, "; training continues without it")
        failed, self._logger = self._logger, None
        if failed is not None:
            with suppress(Exception):
                failed.close()

    def _warn(self, error: Exception, consequence: str) -> None:
        print_warning(f"{self._name}: {one_line(error)}{consequence}")


class JsonLines:
    """Logger that writes `metrics.jsonl`. Every run has one: plots, reports, trackers and `lockstep watch` read this file.

    Lines that can't be written, for example because the disk is full, stay in memory until they can. The first time, a warning says so.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_to_append(path)
        self._unwritten = bytearray()
        self._warned = False
        sync_folder(path.parent)

    def write(self, metrics: Mapping[str, object]) -> None:
        """Append one line."""
        self._unwritten += f"{json.dumps(metrics)}\n".encode()

    def write_evaluation(self, row: Mapping[str, object]) -> None:
        """Do nothing: the process that evaluates has written evaluations.jsonl."""

    def flush(self) -> None:
        """See `Logger.flush`."""
        try:
            self.write_out()
        except OSError as error:
            if not self._warned:
                self._warned = True
                reason = f"{self._path} can't be written ({error.strerror})"
                print_warning(f"{reason}: training continues, and its lines are written as soon as possible")

    def sync(self) -> None:
        """Wait until the lines that were passed to the operating system are on disk, where they survive a power loss (fsync)."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file. Without an earlier warning, one names the number of lines that are lost."""
        with suppress(OSError):
            self.write_out()
        os.close(self._file)
        if self._unwritten and not self._warned:
            lines = self._unwritten.count(b"\n")
            print_warning(f"{self._path}: the last {counted(lines, 'line')} could not be written")

    def write_out(self) -> None:
        """Pass all lines to the operating system. Raises OSError if they can't be written."""
        while self._unwritten:
            written = os.write(self._file, self._unwritten)
            del self._unwritten[:written]


class TensorBoard:
    """Logger of scalars over environment steps for TensorBoard, in the groups rollout/, train/, time/ and evaluation/."""

    def __init__(self, folder: Path, purge_step: int, config: Mapping[str, object]) -> None:
        """Open the event file in `folder`, with the config tree in the HParams tab.

        TensorBoard hides points at or after `purge_step`: a killed process may have written them.
        """
        self._events = EventFile(folder, purge_step)
        if self._events.created:
            self._events.add_config(flatten_config(config))

    def write(self, metrics: Mapping[str, object]) -> None:
        """Add one point to every curve, all in one event."""
        self._events.add(int(str(metrics["env_steps"])), scalars(metrics))

    def write_evaluation(self, row: Mapping[str, object]) -> None:
        """Add one point to every curve of the group evaluation/."""
        self._events.add(int(str(row["env_steps"])), evaluation_scalars(row))

    def flush(self) -> None:
        """See `Logger.flush`."""
        self._events.flush()

    def close(self) -> None:
        """Flush and close the event file."""
        self._events.close()


def scalars(metrics: Mapping[str, object]) -> dict[str, float]:
    """Return the numeric metrics under their names in trackers: rollout/NAME, train/NAME or time/NAME."""
    return {_tag(name): value for name, value in metrics.items() if isinstance(value, (int, float))}


def evaluation_scalars(row: Mapping[str, object]) -> dict[str, float]:
    """Return the results of an evaluation under their names in trackers: evaluation/NAME."""
    results = {name: value for name, value in row.items() if name not in ("iteration", "env_steps", "seconds")}
    return {f"evaluation/{name}": value for name, value in results.items() if isinstance(value, (int, float))}


def flatten_config(config: Mapping[str, object]) -> dict[str, bool | float | str]:
    """Flatten a config tree to `section.field` keys. Values are booleans, numbers or strings; others are encoded as JSON."""
    fields: dict[str, bool | float | str] = {}
    for section, content in config.items():
        if isinstance(content, Mapping):
            for name, value in content.items():
                shown = "none" if value is None else value
                fields[f"{section}.{name}"] = shown if isinstance(shown, (bool, int, float, str)) else json.dumps(shown)
    return fields


@functools.cache
def _tag(name: str) -> str:
    if name.startswith(("t_", "player_t_")) or name in {"fps", "seconds", "iteration", "env_steps", "frames", "lag"}:
        return f"time/{name}"
    return f"{'rollout' if name.startswith(('return', 'length', 'episodes', 'env_faults', 'preempted', 'info/')) else 'train'}/{name}"
