"""The store of torch.distributed, through which ranks exchange their addresses."""

import ipaddress
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from urllib.parse import urlsplit

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from lockstep.group.authenticated_store import SECRET_RULE, AuthenticatedStore, serve_store
from lockstep.group.connections import connect, late, resolve_host

__all__ = ["is_loopback", "make_store"]

_ENV, _TCP = "env://", "tcp://"
_RENDEZVOUS = "lockstep/rendezvous"
"""Key of the token of the newest start."""
_POLL = 0.02
"""Seconds between two requests for the same key."""
_CHALLENGE_SECONDS = 0.2
"""Time in which an `AuthenticatedStore` sends its challenge."""


def make_store(address: str, rank: int, size: int, timeout: timedelta, secret: bytes | None = None) -> Store:
    """Connect to the store at an address of the forms of `runtime.rendezvous`.

    For `tcp://HOST:PORT`, and for the MASTER_ADDR and MASTER_PORT of `env://`, rank 0 listens only on the interface with the host's address;
    PyTorch alone would listen on all interfaces. With a `secret`, the store of these two addresses is an `AuthenticatedStore`.
    Raises RuntimeError or ValueError as PyTorch does, and TimeoutError(who, why) if not all ranks arrive in time.
    """
    if address == _ENV:
        return _with_run_prefix(_make_store(_launcher_address(), rank, size, timeout, secret), rank, size, timeout)
    return _make_store(address, rank, size, timeout, secret)


def _launcher_address() -> str:
    """Return the address of the store whose host and port the launcher has set. `env://` if the launcher has created the store itself."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return _ENV
    host = os.environ["MASTER_ADDR"]
    return f"{_TCP}{f'[{host}]' if ':' in host else host}:{os.environ['MASTER_PORT']}"


def _make_store(address: str, rank: int, size: int, timeout: timedelta, secret: bytes | None) -> Store:
    if secret is not None and address.startswith(_TCP):
        return _make_authenticated_store(address, rank, secret, timeout)
    if not address.startswith(_TCP):
        store, _, _ = next(rendezvous(address, rank, size, timeout=timeout))
        return store  # type: ignore[no-any-return]
    parts = urlsplit(address)
    host, port, descriptor = parts.hostname or "", parts.port or 0, None
    deadline = time.monotonic() + timeout.total_seconds()
    if rank:
        _check_store(host, port, deadline)
    else:
        resolve_host(host, port, deadline)
        if listener := _listen(address):
            host, port = listener.getsockname()[:2]
            descriptor = listener.detach()
    # ranks that are missing are named when the process group is created
    store = TCPStore(
        host,
        port,
        size,
        is_master=not rank,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )
    assert isinstance(store, Store)
    return store


def _check_store(host: str, port: int, deadline: float) -> None:
    """Wait until PyTorch's store listens. PyTorch itself would wait longer, and print stack traces of C++ if it does not.

    Raises RuntimeError, in one line, if nobody listens by `deadline`, or if it is a store that sends a challenge.
    """
    with connect(host, port, deadline) as connection:
        connection.settimeout(_CHALLENGE_SECONDS)
        with suppress(TimeoutError, ConnectionError):
            if connection.recv(1):
                raise RuntimeError(f"{host}:{port} asks for a secret: {SECRET_RULE}")


def _make_authenticated_store(address: str, rank: int, secret: bytes, timeout: timedelta) -> Store:
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or 0
    if rank == 0:
        resolve_host(host, port, time.monotonic() + timeout.total_seconds())
        try:
            listener = _listen(address) or socket.create_server(("", port))
        except OSError as error:
            raise RuntimeError(f"port {port} of the store can't be opened: {error.strerror}") from None
        host, port = listener.getsockname()[:2]
        serve_store(listener, secret)
    return AuthenticatedStore(host, port, secret, timeout)


def _with_run_prefix(store: Store, rank: int, size: int, timeout: timedelta) -> Store:
    """Return a part of the store that only the ranks of this start use.

    torchrun keeps one store over all restarts (despite a comment in `torch.distributed.rendezvous`), which holds the addresses of the
    ranks of earlier starts. Therefore rank 0 publishes a random token. The other ranks announce a random key each under the token, and
    wait until rank 0 has repeated it; no rank of an earlier start has the key.
    """
    deadline = time.monotonic() + timeout.total_seconds()

    def wait(condition: Callable[[], bool], who: str) -> None:
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(who, late(timeout.total_seconds()))
            time.sleep(_POLL)

    def read(key: str) -> str:
        return store.get(key).decode() if store.check([key]) else ""

    if rank == 0:
        token, keys = secrets.token_hex(16), {}
        store.set(_RENDEZVOUS, token)
        for other in range(1, size):
            wait(lambda other=other: bool(read(f"{token}/{other}")), f"rank {other}")  # type: ignore[misc]
            keys[other] = read(f"{token}/{other}")
        for other, key in keys.items():
            store.set(f"{token}/{other}/seen", key)
        return PrefixStore(token, store)

    key, announced = secrets.token_hex(16), ""

    def is_expected() -> bool:
        nonlocal announced
        token = read(_RENDEZVOUS)
        if token and token != announced:
            store.set(f"{token}/{rank}", key)
            announced = token
        return bool(token) and read(f"{token}/{rank}/seen") == key

    wait(is_expected, "rank 0")
    return PrefixStore(announced, store)


def is_loopback(address: str) -> bool:
    """Return True if only processes of this host can reach a `tcp://HOST:PORT`."""
    host = urlsplit(address).hostname or ""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _listen(address: str) -> socket.socket | None:
    """Listen at a `tcp://HOST:PORT`. None: PyTorch has to listen, or to say why it can't."""
    parts = urlsplit(address)
    with suppress(OSError, ValueError):
        family, kind, protocol, _, target = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)[0]
        # systems may map the name of a host to a loopback address, which other hosts can't reach
        if ipaddress.ip_address(target[0]).is_loopback and not is_loopback(address):
            return None
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
            listener.listen()
        except OSError:  # for example because the address is translated between networks
            listener.close()
            raise
        return listener
    return None
