"""A store of torch.distributed whose clients prove that they know a secret.

PyTorch's TCPStore answers whoever connects. This store has the same interface. Both sides authenticate each other with HMAC, as
`multiprocessing.connection` does it, and messages are JSON of bounded length: nothing from the network is unpickled.
"""

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Connection,
    answer_challenge,
    deliver_challenge,
)
from threading import BoundedSemaphore, Lock, Thread
from typing import ClassVar

from torch.distributed.distributed_c10d import Store

from lockstep.group.connections import connect, reason

__all__ = ["SECRET_RULE", "AuthenticatedStore", "serve_store"]

SECRET_RULE = "LOCKSTEP_SECRET must be the same for all ranks"

_MOST_BYTES = 1 << 26
"""Maximum size of a message. The addresses of 4,096 ranks, which gloo stores under one key, are below 1 MiB."""
_MOST_UNAUTHENTICATED = 64
"""Maximum number of connections that have not proved yet that they know the secret. More are closed at once."""
_AUTHENTICATION_SECONDS = 10
"""Seconds that a connection has for each message of the proof."""
_POLL = 0.01
"""Seconds between two requests for a key that does not exist yet."""


class AuthenticatedStore(Store):
    """One rank's connection to the store that `serve_store` runs.

    The methods are those of `torch.distributed.Store` that process groups call. Requests of several threads follow one another; `get`
    and `wait` poll, so none of them blocks the others.
    """

    _kept: ClassVar[list[Store]] = []
    """All stores of the process: PyTorch keeps only their part in C++, which does not work without the object in Python."""

    def __init__(self, host: str, port: int, secret: bytes, timeout: timedelta) -> None:
        """Connect, and try again until `timeout` is over, because the store may not run yet.

        Raises RuntimeError if nobody listens in time, or if the store has another secret.
        """
        super().__init__()
        self._kept.append(self)
        self._lock = Lock()
        self._limit = timeout
        self._connection = _connect(host, port, secret, time.monotonic() + timeout.total_seconds())

    def _request(self, operation: str, *arguments: object) -> object:
        with self._lock:
            try:
                self._connection.send_bytes(json.dumps([operation, *arguments]).encode())
                return json.loads(self._connection.recv_bytes(_MOST_BYTES))
            except (EOFError, OSError) as error:
                raise RuntimeError(f"the store does not answer: {reason(error)}") from None

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value."""
        self._request("set", key, _text(value))

    def get(self, key: str) -> bytes:
        """Return a value; wait until it exists. Raises RuntimeError if that takes longer than the timeout."""
        self.wait([key])
        return str(self._request("get", key)).encode("latin-1")

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 if it does not exist, and return the sum."""
        return int(str(self._request("add", key, amount)))

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Store a value if the current one is as expected, or if both are empty; return the value afterwards."""
        return str(self._request("compare_set", key, _text(expected_value), _text(desired_value))).encode("latin-1")

    def check(self, keys: Sequence[str]) -> bool:
        """Return True if all keys exist."""
        return bool(self._request("check", *keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys exist. Raises RuntimeError after the timeout."""
        limit = (timeout or self._limit).total_seconds()
        deadline = time.monotonic() + limit
        while not self.check(keys):
            if time.monotonic() > deadline:
                raise RuntimeError(f"wait timeout after {limit:g} s, keys: {', '.join(keys)}")
            time.sleep(_POLL)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the limit of `get` and `wait`."""
        self._limit = timeout

    @property
    def timeout(self) -> timedelta:
        """Limit of `get` and `wait`."""
        return self._limit


def serve_store(listener: socket.socket, secret: bytes) -> None:
    """Run the store at a socket that listens, in threads that end with the process."""
    entries = _Entries()
    unauthenticated = BoundedSemaphore(_MOST_UNAUTHENTICATED)

    def accept() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:  # a connection that was closed before it was accepted, or no descriptor left
                time.sleep(_POLL)
                continue
            if unauthenticated.acquire(blocking=False):
                client = Thread(
                    target=_serve_client, args=(accepted, secret, entries, unauthenticated.release), daemon=True
                )
                try:
                    client.start()
                    continue
                except RuntimeError:  # the system allows no more threads
                    unauthenticated.release()
            accepted.close()

    Thread(target=accept, name="lockstep_store", daemon=True).start()


class _Entries:
    """The stored values, as text with one character per byte."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._lock = Lock()

    def answer(self, operation: str, *arguments: str) -> object:
        """Do one request. Raises ValueError or TypeError for one that no AuthenticatedStore sends."""
        with self._lock:
            match operation, arguments:
                case "set", (key, value):
                    self._values[key] = value
                    return None
                case "get", (key,):
                    return self._values.get(key, "")
                case "add", (key, amount):
                    self._values[key] = str(int(self._values.get(key, "0")) + int(amount))
                    return self._values[key]
                case "compare_set", (key, expected, desired):
                    if self._values.get(key, "") == expected:
                        self._values[key] = desired
                    return self._values.get(key, expected)
                case "check", keys:
                    return all(key in self._values for key in keys)
            raise ValueError(operation)


def _serve_client(accepted: socket.socket, secret: bytes, entries: _Entries, authenticated: Callable[[], None]) -> None:
    """Answer the requests of one connection, after it has proved that it knows the secret. Then, or when it can't, call `authenticated`."""
    with suppress(OSError, EOFError, ValueError, TypeError, AuthenticationError):
        try:
            connection = _as_connection(accepted)
            deliver_challenge(connection, secret)
            answer_challenge(connection, secret)
        finally:
            authenticated()
        _set_limit(connection, 0)
        while True:
            request = json.loads(connection.recv_bytes(_MOST_BYTES))
            connection.send_bytes(json.dumps(entries.answer(*request)).encode())


def _connect(host: str, port: int, secret: bytes, deadline: float) -> Connection:
    while True:
        seconds = max(1, min(_AUTHENTICATION_SECONDS, round(deadline - time.monotonic()) // 2))
        try:
            connection = _as_connection(connect(host, port, deadline), seconds)
            answer_challenge(connection, secret)
            deliver_challenge(connection, secret)
        except AuthenticationError:
            raise RuntimeError(f"{host}:{port} has another secret: {SECRET_RULE}") from None
        except BlockingIOError:
            raise RuntimeError(f"{host}:{port} does not ask for the secret: {SECRET_RULE}") from None
        except (OSError, EOFError) as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no connection to {host}:{port}: {reason(error)}") from None
            time.sleep(10 * _POLL)
        else:
            _set_limit(connection, 0)
            return connection


def _as_connection(connected: socket.socket, seconds: int = _AUTHENTICATION_SECONDS) -> Connection:
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = Connection(connected.detach())
    _set_limit(connection, seconds)
    return connection


def _set_limit(connection: Connection, seconds: int) -> None:
    """Limit the time of each read, 0 for no limit. `Connection` has no timeout of its own, and raises BlockingIOError then."""
    with socket.socket(fileno=os.dup(connection.fileno())) as connected:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


def _text(value: str | bytes) -> str:
    """Return a value as text with one character per byte, which JSON can hold."""
    return (value.encode() if isinstance(value, str) else value).decode("latin-1")
