"""Being asked to stop, by Ctrl-C, a scheduler's SIGTERM or SIGUSR1.

Signals belong to the process, so this is the process's one piece of state. It imports nothing heavy: a process listens before
it imports PyTorch, so that a signal in its first seconds counts too.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from lockstep.processes.exit_codes import BAD_INPUT

__all__ = [
    "SIGNALS",
    "StoppedEarly",
    "asked_to_stop",
    "end_unheard",
    "follow_launcher",
    "listen",
    "listening",
    "note",
    "over_a_drawing",
    "raise_if_asked",
]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Those that ask."""
_NAMES: dict[int, str] = {signal.SIGINT: "Ctrl-C"}
_ECHO = 1.0
"""Seconds in which a signal that comes again is the same request: schedulers signal every process of a job, and a launcher
passes its own on as well."""

_PATIENCE = 10.0
"""Seconds that another rank has to say what is wrong."""


class StoppedEarly(RuntimeError):
    """A signal asked the run to stop before its first iteration."""


_asked = 0
_asked_at = 0.0
_aloud = False
_drawn = False
_launcher = 0
_Handler = Callable[[int, FrameType | None], object] | int
_before: dict[int, _Handler] = {}
"""What a program did at a signal before it began to train."""


def listen(aloud: bool = True) -> None:
    """From now on the first signal asks for a clean stop, and one that comes a second later does what it did before, as a rule to kill.
    `aloud`: the user is told so.

    Only in a process's main thread, which is the one that can; elsewhere nothing changes.
    """
    global _aloud
    _aloud = aloud
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        signal.signal(number, _hear)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # our own launch starts ranks with them held back


@contextmanager
def listening() -> Iterator[None]:
    """Listens as long as it lasts. Then signals do again what they did before, and if one has asked it is raised once more for that."""
    global _asked
    _asked = 0
    main = threading.current_thread() is threading.main_thread()
    _before.update({number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS} if main else {})
    listen()
    try:
        yield
    finally:
        for number, handler in _before.items():
            signal.signal(number, handler)
        _before.clear()
        asked, _asked = _asked, 0
    if asked:
        signal.raise_signal(asked)


def note(number: int) -> None:
    """Takes a signal that came to another handler as a request to stop."""
    global _asked
    _asked = _asked or number


def follow_launcher() -> None:
    """From now on this process also asks for a clean stop when the one that started it has ended: a launcher that was killed
    could not pass anything on.
    """
    global _launcher
    _launcher = os.getppid()


def over_a_drawing(drawn: bool) -> None:
    """Whether the terminal's last line is from now on that of a drawing: what is told covers it until it is drawn again."""
    global _drawn
    _drawn = drawn


def asked_to_stop() -> int:
    """The number of the signal that asked, 0 if none did."""
    if not _asked and _launcher and os.getppid() != _launcher:
        return signal.SIGHUP
    return _asked


def raise_if_asked() -> None:
    """Raise StoppedEarly if a signal has asked for a stop."""
    if asked_to_stop():
        raise StoppedEarly("stopped before the first iteration of this start: nothing was trained")


def end_unheard() -> NoReturn:
    """Ends a rank with exit code 2 and without a word, because another has found the same and tells it to the user.

    It lets the other go first: launchers kill all ranks when they see one end.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    time.sleep(_PATIENCE)
    raise SystemExit(BAD_INPUT)


def _hear(number: int, frame: FrameType | None) -> None:
    global _asked, _asked_at
    now = time.monotonic()
    if not _asked:
        _asked, _asked_at = number, now
        if _aloud:
            _tell(f"stopping after the iteration at hand; a second {_NAMES.get(number, 'signal')} ends it at once")
    elif now - _asked_at > _ECHO:
        signal.signal(number, _before.get(number, signal.SIG_DFL))
        os.kill(os.getpid(), number)


def _tell(text: str) -> None:
    line = f"\r\x1b[2K{text}" if _drawn else f"lockstep: {text}\n"
    with suppress(OSError):
        os.write(2, line.encode())  # sys.stderr may be at work just now, and can't be entered twice
