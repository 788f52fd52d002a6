"""Fixtures of the tests of runs."""

import signal
from collections.abc import Iterator

import pytest

from lockstep.run import stop


@pytest.fixture(name="restored_signals")
def restored_signals() -> Iterator[None]:
    """Restore the signal handlers, which a run replaces."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    stop._asked = 0
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)
