"""TCP connections to a host that may not listen yet, or whose name may not resolve yet."""

import socket
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["connect", "late", "reason", "resolve_host"]

_PAUSE = 0.1
_SECONDS = 10.0
"""Timeout of one attempt to connect."""
_T = TypeVar("_T")


def connect(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to a port. Try again until `deadline`, of `time.monotonic`; then raise RuntimeError in one line."""

    def attempt() -> socket.socket:
        return socket.create_connection((host, port), timeout=max(0.1, min(_SECONDS, deadline - time.monotonic())))

    return _until(attempt, deadline, f"no connection to {host}:{port}")


def resolve_host(host: str, port: int, deadline: float) -> None:
    """Wait until the name of a host resolves. Raise RuntimeError in one line if it does not by `deadline`, of `time.monotonic`."""
    _until(lambda: socket.getaddrinfo(host, port), deadline, f"the host {host} has no address")


def reason(error: OSError | EOFError) -> str:
    """Return the text of an error of a connection, without the name of its type and its number."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or "the connection was closed"


def late(seconds: float) -> str:
    """Return what is said of a rank that has not connected in time."""
    return f"no connection within {seconds:g} s (see runtime.timeout)"


def _until(attempt: Callable[[], _T], deadline: float, problem: str) -> _T:
    while True:
        try:
            return attempt()
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{problem}: {reason(error)}") from None
        time.sleep(_PAUSE)
