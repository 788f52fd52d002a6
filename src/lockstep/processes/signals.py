"""The signals that request a stop, and the one that asks a rank for its stack traces."""

import signal

__all__ = ["SIGNALS", "STACKS_SIGNAL", "handled_signals", "signal_name"]

SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
    signal.SIGQUIT,
)
"""Signals that request a stop: Ctrl-C, those that schedulers send, a closed terminal, and Ctrl-\\."""
STACKS_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGABRT)
"""Signal at which a rank prints the stack traces of all threads."""


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return SIGNALS, without SIGHUP if this process ignores it because it was started by `nohup`."""
    return tuple(number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN)


def signal_name(number: int) -> str:
    """Return the name of a signal. Most real-time signals have none, and are described by their numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
