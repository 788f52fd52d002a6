"""The interfaces on which the store of torch.distributed listens."""

import os
import socket
from datetime import timedelta
from threading import Thread

import pytest
from tests.live_runs import listening

from lockstep.group.store import is_loopback, make_store

LOOPBACK = "0100007F"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_store_listens_only_on_the_named_interface(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address, limit, before = f"tcp://{host}:{free_port()}", timedelta(seconds=60), listening([os.getpid()])
    values = []
    other = Thread(target=lambda: values.append(make_store(address, 1, 2, limit).get("key")))
    other.start()
    store = make_store(address, 0, 2, limit)
    opened = listening([os.getpid()])
    store.set("key", "value")
    other.join()
    for interface in before:
        opened.remove(interface)
    assert values == [b"value"]
    assert opened == [LOOPBACK]


def test_loopback_addresses_are_recognized() -> None:
    assert all(map(is_loopback, ("tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1", "tcp://127.1.2.3:1")))
    assert not any(map(is_loopback, ("tcp://host:1", "tcp://10.0.0.1:1", "file:///127.0.0.1", "env://", "")))


def test_port_in_use_is_an_error_of_pytorch() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(RuntimeError, match="address already in use"):
        make_store(f"tcp://127.0.0.1:{server.getsockname()[1]}", 0, 1, timedelta(seconds=5))
