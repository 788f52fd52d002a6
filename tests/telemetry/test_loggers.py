"""Loggers that fail must not stop training."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from lockstep.telemetry.loggers import JsonLines, OptionalLogger, TensorBoard


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
    logger = OptionalLogger("Fragile", lambda: FailingLogger(failing))
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

    logger = OptionalLogger("TensorBoard", make)
    os.close(made[0]._events._file)
    made[0]._events._file = os.open("/dev/full", os.O_WRONLY)
    for step in range(1, 4):
        logger.write({"env_steps": step, "loss": 1.0})
        logger.flush()
    logger.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert "TensorBoard: [Errno 28]" in line


def test_lines_that_cannot_be_written_are_kept_until_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"iteration": iteration, "loss": 0.5} for iteration in range(1, 6)]
    path, write, space = tmp_path / "metrics.jsonl", os.write, [40, 0]
    lines = JsonLines(path)

    def with_little_space(descriptor: int, content: bytes) -> int:
        if not space:
            return write(descriptor, content)
        if not (bytes_left := space.pop(0)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content[:bytes_left])

    monkeypatch.setattr(os, "write", with_little_space)
    for row in rows[:3]:
        lines.write(row)
    lines.flush()
    assert path.stat().st_size == 40
    space.append(0)
    with pytest.raises(OSError, match="No space left"):
        lines.write_out()
    lines.write(rows[3])
    space.append(0)
    lines.flush()
    lines.flush()
    lines.write(rows[4])
    lines.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == rows
    warning = f"lockstep: {path} can't be written (No space left on device): training continues, "
    assert capsys.readouterr().err == f"{warning}and its lines are written as soon as possible\n"


def test_lines_that_are_lost_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl")
    monkeypatch.setattr(os, "write", lambda *_: fail_with(errno.EROFS))
    lines.write({"iteration": 1})
    lines.write({"iteration": 2})
    lines.close()
    assert capsys.readouterr().err.endswith("metrics.jsonl: the last 2 lines could not be written\n")


def fail_with(number: int) -> None:
    raise OSError(number, os.strerror(number))


def test_metrics_are_not_written_through_a_link(tmp_path: Path) -> None:
    (mine := tmp_path / "mine").write_text("mine")
    (tmp_path / "metrics.jsonl").symlink_to(mine)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        JsonLines(tmp_path / "metrics.jsonl")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="No such device"):
        JsonLines(tmp_path / "fifo")
