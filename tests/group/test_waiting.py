"""How a rank waits for another one of its host."""

import os

import pytest

from lockstep.group import host as host_module
from lockstep.group.host import Host
from lockstep.group.memory import create_memory
from lockstep.processes import heartbeat


@pytest.fixture(name="host")
def fixture_host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """Rank 0 of two, for which every yield takes long."""
    monkeypatch.setattr(heartbeat, "attach", lambda cells, watched: None)
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
