"""Tests of the store whose clients prove that they know a secret, and of clients that do not."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Client

import pytest
from torch.distributed import PrefixStore

from lockstep.group import authenticated_store
from lockstep.group.authenticated_store import AuthenticatedStore, serve_store
from lockstep.group.store import make_store

SECRET = b"0123456789abcdef"
LIMIT = timedelta(seconds=20)
JUNK = [
    b"",
    b"\0",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x7f\xff\xff\xff" + b"x" * 1000,  # announces 2 GiB
    b"\xff\xff\xff\xff" + b"\xff" * 8,  # announces 16 EiB
    b"\0\0\0\2[]",
]
"""What clients send that are not authenticated."""


@pytest.fixture(name="address")
def fixture_address() -> Iterator[tuple[str, int]]:
    """Address of a store."""
    listener = socket.create_server(("127.0.0.1", 0))
    serve_store(listener, SECRET)
    yield listener.getsockname()[:2]
    listener.close()


def connect(address: tuple[str, int], secret: bytes = SECRET, limit: timedelta = LIMIT) -> AuthenticatedStore:
    return AuthenticatedStore(*address, secret, limit)


def test_clients_share_all_entries(address: tuple[str, int]) -> None:
    first, second = connect(address), connect(address)
    every_byte = bytes(range(256))
    first.set("bytes", every_byte)
    second.set("text", "value")
    assert (second.get("bytes"), first.get("text")) == (every_byte, b"value")
    assert [store.add("number", 2) for store in (first, second)] == [2, 4]
    assert first.get("number") == b"4"
    assert first.check(["bytes", "text"])
    assert not first.check(["bytes", "missing"])


def test_compare_set_is_that_of_pytorch(address: tuple[str, int]) -> None:
    store = connect(address)
    assert store.compare_set("key", "other", "value") == b"other"
    assert not store.check(["key"])
    assert store.compare_set("key", "", "value") == b"value"
    assert store.compare_set("key", "", "late") == b"value"
    assert store.compare_set("key", "value", "new") == b"new"


def test_get_waits_for_a_value_and_has_a_limit(address: tuple[str, int]) -> None:
    waiting, other = connect(address), connect(address)
    with ThreadPoolExecutor() as threads:
        part = PrefixStore("part", waiting)
        value = threads.submit(part.get, "late")
        time.sleep(0.1)
        assert not value.done()
        PrefixStore("part", other).set("late", "value")
        assert value.result(20) == b"value"
    waiting.set_timeout(timedelta(seconds=0.1))
    assert waiting.timeout == timedelta(seconds=0.1)
    with pytest.raises(RuntimeError, match=r"wait timeout after 0\.1 s, keys: missing"):
        waiting.get("missing")


def test_client_waits_for_the_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
    with ThreadPoolExecutor() as threads:
        early = threads.submit(connect, address)
        time.sleep(0.3)
        listener = socket.create_server(address)
        serve_store(listener, SECRET)
        assert not early.result(20).check(["key"])
    listener.close()


def test_wrong_secret_is_refused(address: tuple[str, int]) -> None:
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:\d+ has another secret: LOCKSTEP_SECRET must be"):
        connect(address, b"another secret..")
    with pytest.raises(RuntimeError, match="no connection to 127"):
        connect(("127.0.0.1", 1), limit=timedelta(seconds=0.2))


def test_store_has_to_prove_that_it_knows_the_secret() -> None:
    """A process that has taken the port first gets neither a request nor the secret."""
    received = []

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"\0\0\0\x1f#CHALLENGE#" + b"n" * 20)
            received.append(connection.recv(1000))
            connection.sendall(b"\0\0\0\x09#WELCOME#")
            received.append(connection.recv(1000))
            connection.sendall(b"\0\0\0\x10" + b"w" * 16)
            received.append(connection.recv(1000))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        with pytest.raises(RuntimeError, match="another secret"):
            connect(listener.getsockname()[:2])
        thread.join()
    assert not any(SECRET in message for message in received)
    assert b"CHALLENGE" in received[1]


def test_strangers_get_nothing_and_disturb_nothing(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticated_store, "_AUTHENTICATION_SECONDS", 1)
    store = connect(address)
    store.set("key", "private value")
    clients = [socket.create_connection(address) for _ in range(3 * len(JUNK))]
    heard = b""
    for client, junk in zip(clients, 3 * JUNK, strict=True):
        client.sendall(junk)
    assert connect(address).get("key") == b"private value"
    for client in clients:
        client.settimeout(20)
        with suppress(ConnectionError):
            # the store closes the connection, at the latest after the time for a proof
            while part := client.recv(1000):
                heard += part
        client.close()
    assert b"private" not in heard
    assert store.get("key") == b"private value"


def test_idle_strangers_do_not_keep_ranks_out(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticated_store, "_AUTHENTICATION_SECONDS", 1)
    clients = [socket.create_connection(address) for _ in range(100)]
    assert not connect(address).check(["key"])
    for client in clients:
        client.close()


def test_connections_that_fail_at_once_do_not_keep_ranks_out(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that a port scanner resets before the store has set their options."""
    make, failures = authenticated_store._as_connection, []

    def fail(accepted: socket.socket) -> object:
        if accepted.getsockname()[1] != address[1]:
            return make(accepted)
        accepted.close()
        failures.append(accepted.fileno())
        raise OSError

    monkeypatch.setattr(authenticated_store, "_as_connection", fail)
    count = 2 * authenticated_store._MOST_UNAUTHENTICATED
    for number in range(count):
        socket.create_connection(address).close()
        while len(failures) <= number:
            time.sleep(0.001)
    monkeypatch.setattr(authenticated_store, "_as_connection", make)
    assert not connect(address).check(["key"])


@pytest.mark.parametrize(
    "request_", [["unknown"], ["set", "key"], {}, 7, ["add", "key", "x"], [["set"], "key", "value"]]
)
def test_malformed_request_ends_only_its_connection(address: tuple[str, int], request_: object) -> None:
    with Client(address, authkey=SECRET) as client:
        client.send_bytes(json.dumps(request_).encode())
        with pytest.raises((EOFError, ConnectionError)):
            client.recv_bytes()
    assert not connect(address).check(["key"])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_ranks_with_a_secret_meet_at_an_authenticated_store(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with ThreadPoolExecutor() as threads:
        stores = [*threads.map(lambda rank: make_store(f"tcp://{host}:{port}", rank, 2, LIMIT, SECRET), range(2))]
    assert all(isinstance(store, AuthenticatedStore) for store in stores)
    stores[0].set("key", "value")
    assert stores[1].get("key") == b"value"


def test_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"port {port} of the store can't be opened: Address already in use"):
            make_store(f"tcp://127.0.0.1:{port}", 0, 1, LIMIT, SECRET)
