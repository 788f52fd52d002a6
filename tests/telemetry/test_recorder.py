"""The end of telemetry."""

import pytest

from lockstep.telemetry.recorder import Recorder


class Closing:
    """Logger that notes when it is closed, and may fail then."""

    def __init__(self, closed: list[str], name: str, error: Exception | None = None) -> None:
        self.closed, self.name, self.error = closed, name, error

    def close(self) -> None:
        self.closed.append(self.name)
        if self.error is not None:
            raise self.error


def test_all_loggers_are_closed_if_one_fails() -> None:
    closed: list[str] = []
    recorder = Recorder.__new__(Recorder)
    recorder._loggers = [
        Closing(closed, "lines", BrokenPipeError()),
        Closing(closed, "tensorboard"),
        Closing(closed, "storage"),
    ]
    with pytest.raises(BrokenPipeError):
        recorder.close()
    assert closed == ["lines", "tensorboard", "storage"]
