"""Requests to stop: Ctrl-C, a scheduler's SIGTERM, SIGUSR1 or SIGUSR2, a closed terminal.

Signals belong to the process, so this module has global state. It imports nothing heavy: a process handles signals before it imports
PyTorch, so that a signal in its first seconds counts too.
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
from lockstep.processes.heartbeat import set_exit_code
from lockstep.processes.signals import SIGNALS, handled_signals

__all__ = [
    "StoppedEarly",
    "asked_to_stop",
    "asked_to_stop_now",
    "exit_silently",
    "listen",
    "listening",
    "raise_if_asked",
    "record_signal",
    "set_live_view_active",
    "stop_with_launcher",
]

_NAMES: dict[int, str] = {signal.SIGINT: "Ctrl-C"}
_DUPLICATE_WINDOW = 1.0
"""Seconds within which another signal counts as the same request: schedulers signal every process of a job, and a launcher also forwards
its own."""

_REPORT_SECONDS = 10.0
"""Seconds that another rank has to report an error."""


class StoppedEarly(RuntimeError):
    """A signal requested a stop before the first iteration."""


_asked = 0
_asked_at = 0.0
_asked_again = 0
_announce = False
_live_view_active = False
_launcher = 0
_Handler = Callable[[int, FrameType | None], object] | int
_before: dict[int, _Handler] = {}
"""Signal handlers of a program from before it began to train."""


def listen(announce: bool = True) -> None:
    """Install signal handlers: the first signal requests a clean stop.

    If another signal arrives more than a second later, the previous handler is called, which usually ends the process. `announce`
    prints a line for the user. Outside the main thread, which alone can install handlers, this does nothing.
    """
    global _announce
    _announce = announce
    if threading.current_thread() is not threading.main_thread():
        return
    for number in handled_signals():
        signal.signal(number, _on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # the launcher starts ranks with signals blocked


@contextmanager
def listening() -> Iterator[None]:
    """Handle signals as requests to stop inside the `with` block.

    Afterwards, restore the previous handlers. If a signal was received inside, raise it again for them.
    """
    global _asked, _asked_again
    _asked = _asked_again = 0
    main = threading.current_thread() is threading.main_thread()
    _before.update({number: signal.getsignal(number) or signal.SIG_DFL for number in handled_signals()} if main else {})
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


def record_signal(number: int) -> None:
    """Record a signal that another handler received, as a request to stop, or to stop immediately if it is not the first one."""
    global _asked, _asked_at, _asked_again
    now = time.monotonic()
    if not _asked:
        _asked, _asked_at = number, now
    elif not _asked_again and now - _asked_at > _DUPLICATE_WINDOW:
        _asked_again = number


def stop_with_launcher() -> None:
    """Also request a clean stop when the parent process has ended: a killed launcher can't forward a signal."""
    global _launcher
    _launcher = os.getppid()


def set_live_view_active(active: bool) -> None:
    """Set whether a live view is on the terminal. Messages then overwrite its last line until it is drawn again."""
    global _live_view_active
    _live_view_active = active


def asked_to_stop() -> int:
    """Return the number of the signal that requested a stop, 0 if none did."""
    if not _asked and _launcher and os.getppid() != _launcher:
        return signal.SIGHUP
    return _asked


def asked_to_stop_now() -> int:
    """Return the number of the signal that requested an immediate stop, of those that were recorded; 0 if none did."""
    return _asked_again


def raise_if_asked() -> None:
    """Raise StoppedEarly if a stop was requested."""
    if asked_to_stop():
        raise StoppedEarly("stopped before the first iteration of this start: nothing was trained")


def exit_silently(code: int = BAD_INPUT) -> NoReturn:
    """End this rank silently with this exit code, after a pause in which another rank reports the error.

    Launchers kill all ranks when one ends.
    """
    for number in handled_signals():
        signal.signal(number, signal.SIG_DFL)
    set_exit_code(code)
    time.sleep(_REPORT_SECONDS)
    raise SystemExit(code)


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _asked, _asked_at
    now = time.monotonic()
    if not _asked:
        _asked, _asked_at = number, now
        if _announce:
            _print_message(f"stopping after this iteration; a second {_NAMES.get(number, 'signal')} stops immediately")
    elif now - _asked_at > _DUPLICATE_WINDOW:
        signal.signal(number, _before.get(number, signal.SIG_DFL))
        os.kill(os.getpid(), number)


def _print_message(text: str) -> None:
    line = f"\r\x1b[2K{text}" if _live_view_active else f"lockstep: {text}\n"
    with suppress(OSError):
        os.write(2, line.encode())  # a signal handler can't use sys.stderr, which may be in use
