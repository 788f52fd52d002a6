"""The interfaces on which the store of torch.distributed listens."""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from threading import Thread

import pytest
from tests.live_runs import listening
from torch.distributed import TCPStore

from lockstep.group.store import is_loopback, make_store

LOOPBACK = "0100007F"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("kind", ["tcp", "env"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_store_listens_only_on_the_named_interface(host: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address, port = f"tcp://{host}:{free_port()}", free_port()
    if kind == "env":
        address = "env://"
        monkeypatch.setenv("MASTER_ADDR", host)
        monkeypatch.setenv("MASTER_PORT", str(port))
    limit, before = timedelta(seconds=60), listening([os.getpid()])
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


@pytest.fixture(name="kept_store")
def fixture_kept_store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    """Store of a launcher that keeps it over all restarts, as torchrun does."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for name, value in {"ADDR": "127.0.0.1", "PORT": str(store.port)}.items():
        monkeypatch.setenv(f"MASTER_{name}", value)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    return store


@pytest.mark.usefixtures("kept_store")
@pytest.mark.parametrize("first", [0, 1])
def test_ranks_that_start_again_do_not_see_what_earlier_ranks_have_stored(first: int) -> None:
    """Whichever rank of the second start comes first."""
    for start in ("one", "two"):
        with ThreadPoolExecutor() as threads:
            order = (first, 1 - first)
            limit = timedelta(seconds=20)
            early = threads.submit(make_store, "env://", order[0], 2, limit)
            time.sleep(0.2)
            assert not early.done()
            late = threads.submit(make_store, "env://", order[1], 2, limit)
            stores = dict(zip(order, (early.result(20), late.result(20)), strict=True))
        assert not stores[1].check(["address"])
        stores[0].set("address", start)
        assert stores[1].get("address").decode() == start


@pytest.mark.usefixtures("kept_store")
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_that_does_not_arrive_is_named(rank: int) -> None:
    make = partial(make_store, "env://")
    with ThreadPoolExecutor() as threads:
        for other in (0, 1):
            threads.submit(make, other, 2, timedelta(seconds=20))
    with pytest.raises(TimeoutError) as caught:
        make(rank, 2, timedelta(seconds=0.2))
    assert caught.value.args == (f"rank {1 - rank}", "no connection within 0.2 s (see runtime.timeout)")
