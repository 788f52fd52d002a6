"""How a rank waits for another one of its host."""

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lockstep.group import host as host_module
from lockstep.group.group import RankLost
from lockstep.group.host import Host
from lockstep.group.memory import create_memory
from lockstep.processes import heartbeat
from lockstep.processes.heartbeat import Heartbeat


@pytest.fixture(name="host")
def fixture_host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """Rank 0 of two, for which every yield takes long."""
    monkeypatch.setattr(heartbeat, "attach", lambda cells, watched, handle: None)
    monkeypatch.setattr(host_module, "_LONG_YIELD", -1.0)
    monkeypatch.setattr(host_module, "_WAITS_AFTER_LONG_YIELD", 2)
    host = Host(create_memory(2), 0, (0, 1), 5.0)
    host.set_core_count(0)  # no spinning
    return host


@pytest.mark.parametrize(("avoids", "expected"), [(True, [1, 1, 1, 2]), (False, [3, 6, 9, 12])])
def test_rank_sleeps_in_the_waits_after_a_long_yield(
    avoids: bool, expected: list[int], host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter increases with every third yield and with every sleep."""
    counters, yields, counts = memoryview(bytearray(8)).cast("q"), [], []
    if avoids:
        host.avoids_long_yields = True

    def count_yield() -> None:
        yields.append(1)
        counters[0] += len(yields) % 3 == 0

    monkeypatch.setattr(os, "sched_yield", count_yield)
    monkeypatch.setattr(host_module.time, "sleep", lambda duration: counters.__setitem__(0, counters[0] + 1))
    for target in range(1, 5):
        host.wait(counters, 0, target, 1, "gradients")
        counts.append(len(yields))
    assert counts == expected


def waiting_hosts(monkeypatch: pytest.MonkeyPatch, size: int, timeout: float = 0.5) -> list[Host]:
    """Return the hosts of `size` ranks, each for a thread."""
    monkeypatch.setattr(heartbeat, "attach", lambda cells, watched, handle: None)
    monkeypatch.setattr(host_module, "_GRACE", 0.0)
    file = create_memory(size)
    return [Host(os.dup(file), rank, range(size), timeout) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_wait_for_each_other_are_lost(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank waits for the next one, and the last one for the first."""
    counters = memoryview(bytearray(8)).cast("q")

    def wait(host: Host) -> str:
        with pytest.raises(RankLost) as caught:
            host.wait(counters, 0, 1, (host.rank + 1) % size, "gradients")
        return str(caught.value)

    with ThreadPoolExecutor(size) as threads:
        for message in threads.map(wait, waiting_hosts(monkeypatch, size)):
            assert re.search(r"it and this rank have been waiting for each other for \d s in stage start", message), (
                message
            )


def test_a_rank_that_waits_for_a_third_one_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    # other processes may keep this one from beating for half a second
    counters, hosts = memoryview(bytearray(16)).cast("q"), waiting_hosts(monkeypatch, 3, 2.0)
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(hosts[rank].wait, counters, rank, 1, rank + 1, "gradients") for rank in (0, 1)]
        line = Heartbeat(hosts[2]._cells_of(2))
        for _ in range(50):  # more than twice the timeout
            time.sleep(0.1)
            line.beat()
        assert not any(wait.done() for wait in waits)
        for rank in (1, 0):
            counters[rank] = 1
            waits[rank].result(5)
