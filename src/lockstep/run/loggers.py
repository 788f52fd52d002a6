"""Where metrics go. Rank 0 has loggers, the others have none."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

__all__ = ["JsonLines", "Logger", "TensorBoard"]


class Logger(Protocol):
    """Takes one object per iteration."""

    def write(self, metrics: Mapping[str, object]) -> None:
        """Keeps an iteration's metrics."""

    def close(self) -> None:
        """Leaves everything on disk."""


class JsonLines:
    """`metrics.jsonl`: always written, the source of everything that is shown later."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)  # a line is handed over whole, so a kill cuts at most the last one

    def write(self, metrics: Mapping[str, object]) -> None:
        """Appends a line."""
        self._file.write(json.dumps(metrics) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Scalars over environment steps, grouped as rollout/, train/ and time/."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        """`purge_step` hides what a killed process wrote at or after that step."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import FileWriter

        self._summary = Summary
        self._writer = FileWriter(str(folder))
        self._writer.add_event(Event(step=purge_step, file_version="brain.Event:2"))
        self._writer.add_event(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, metrics: Mapping[str, object]) -> None:
        """Adds a point to every curve, all in one event: `add_scalar` for each takes ten times as long."""
        numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        points = [
            self._summary.Value(tag=f"{_group(name)}/{name}", simple_value=value) for name, value in numbers.items()
        ]
        self._writer.add_summary(self._summary(value=points), metrics["env_steps"])

    def close(self) -> None:
        """Flushes and closes."""
        self._writer.close()


def _group(name: str) -> str:
    if name.startswith(("t_", "player_t_")) or name in {"fps", "seconds", "iteration", "env_steps", "lag"}:
        return "time"
    return "rollout" if name.startswith(("return", "length", "episodes")) else "train"
