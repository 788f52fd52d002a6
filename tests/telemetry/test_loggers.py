"""Loggers that fail, and training that goes on."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from lockstep.telemetry.loggers import TensorBoard, Tolerant


class Fragile:
    """Fails at one of its methods."""

    def __init__(self, at: str) -> None:
        self.at, self.calls = at, [""]
        self._meet("init")

    def write(self, metrics: Mapping[str, object]) -> None:
        self._meet("write")

    def flush(self) -> None:
        self._meet("flush")

    def close(self) -> None:
        self._meet("close")

    def _meet(self, name: str) -> None:
        self.calls.append(name)
        if name == self.at:
            raise OSError(28, "No space left\non device")


@pytest.mark.parametrize("at", ["init", "write", "flush", "close"])
def test_a_logger_that_fails_is_told_once_and_left_out(at: str, capsys: pytest.CaptureFixture[str]) -> None:
    logger = Tolerant("Fragile", lambda: Fragile(at))
    for _ in range(2):
        logger.write({"env_steps": 1})
        logger.flush()
    logger.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lockstep: Fragile: [Errno 28] No space left on device")
    assert line.endswith("; the run goes on without it") == (at != "close")


def test_a_full_disk_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
