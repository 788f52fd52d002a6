"""Where metrics go; the terminal is one of these places. Rank 0 has loggers, the others have none."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from lockstep.run.events import EventFile

__all__ = ["JsonLines", "Logger", "TensorBoard"]


class Logger(Protocol):
    """Takes one object per iteration."""

    def write(self, metrics: Mapping[str, object]) -> None:
        """Keeps an iteration's metrics."""

    def flush(self) -> None:
        """From now on a kill of this process leaves what was written."""

    def close(self) -> None:
        """Leaves everything on disk."""


class JsonLines:
    """`metrics.jsonl`: always written, the source of everything that is shown later."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def write(self, metrics: Mapping[str, object]) -> None:
        """Appends a line."""
        self._file.write(json.dumps(metrics) + "\n")

    def flush(self) -> None:
        """See `Logger.flush`."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Scalars over environment steps, grouped as rollout/, train/ and time/."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        """`purge_step` hides what a killed process wrote at or after that step."""
        self._events = EventFile(folder, purge_step)
        self._tags: dict[str, str] = {}

    def write(self, metrics: Mapping[str, object]) -> None:
        """Adds a point to every curve, all in one event."""
        scalars = {self._tag(name): value for name, value in metrics.items() if isinstance(value, (int, float))}
        self._events.add(int(str(metrics["env_steps"])), scalars)

    def flush(self) -> None:
        """See `Logger.flush`."""
        self._events.flush()

    def close(self) -> None:
        """Flushes and closes."""
        self._events.close()

    def _tag(self, name: str) -> str:
        if name not in self._tags:
            self._tags[name] = f"{_group(name)}/{name}"
        return self._tags[name]


def _group(name: str) -> str:
    if name.startswith(("t_", "player_t_")) or name in {"fps", "seconds", "iteration", "env_steps", "frames", "lag"}:
        return "time"
    return "rollout" if name.startswith(("return", "length", "episodes")) else "train"
