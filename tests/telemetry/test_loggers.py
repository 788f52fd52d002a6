"""Loggers that fail must not stop training."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from lockstep.telemetry.loggers import TensorBoard, Tolerant


class FailingLogger:
    """Logger in which the method `failing` raises OSError."""

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self._call("init")

    def write(self, metrics: Mapping[str, object]) -> None:
        self._call("write")

    def flush(self) -> None:
        self._call("flush")

    def close(self) -> None:
        self._call("close")

    def _call(self, name: str) -> None:
        if name == self.failing:
            raise OSError(28, "No space left\non device")


@pytest.mark.parametrize("failing", ["init", "write", "flush", "close"])
def test_a_failing_logger_is_reported_once_and_dropped(failing: str, capsys: pytest.CaptureFixture[str]) -> None:
    logger = Tolerant("Fragile", lambda: FailingLogger(failing))
    for _ in range(2):
        logger.write({"env_steps": 1})
        logger.flush()
    logger.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lockstep: Fragile: [Errno 28] No space left on device")
    assert line.endswith("; training continues without it") == (failing != "close")


def test_a_full_disk_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made: list[TensorBoard] = []

    def make() -> TensorBoard:
        made.append(TensorBoard(tmp_path, 1, {}))
        return made[0]

    logger = Tolerant("TensorBoard", make)
    made[0]._events._file.close()
    made[0]._events._file = Path("/dev/full").open("wb")  # noqa: SIM115
    for step in range(1, 4):
        logger.write({"env_steps": step, "loss": 1.0})
        logger.flush()
    logger.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert "TensorBoard: [Errno 28]" in line
