"""Tests of local ranks and of the cores that each rank of a host gets."""

import os

import pytest
import torch
from torch import Tensor

from lockstep.group.solo import Solo
from lockstep.processes.cores import usable_cores
from lockstep.runtime import hosts
from lockstep.runtime.hosts import HostSlot, find_host_slot
from lockstep.runtime.join import join
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RuntimeConfig
from lockstep.runtime.threads import share_of_cores

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system can't bind processes to cores"
)


@pytest.mark.parametrize("cores", range(1, 9))
@pytest.mark.parametrize("ranks", range(1, 9))
def test_shares_of_cores_are_even_and_complete(cores: int, ranks: int) -> None:
    shares = [share_of_cores(rank, ranks, cores) for rank in range(ranks)]
    assert sum(shares) == max(cores, ranks)
    assert max(shares) - min(shares) <= 1
    assert min(shares) >= 1


class FakeGroup(Solo):
    """Group of `size` ranks in one process: the rows of the other ranks are copies of this one's, with the given columns changed."""

    def __init__(self, rank: int, size: int, others: dict[int, dict[int, int]]) -> None:
        super().__init__()
        self.rank, self.size, self._others = rank, size, others

    def gather(self, parts: Tensor, phase: str) -> Tensor:
        rows = parts.repeat(self.size, 1)
        for rank, changes in self._others.items():
            for column, value in changes.items():
                rows[rank, column] = value
        return rows


def test_single_rank_gets_all_cores() -> None:
    assert find_host_slot(Solo()) == HostSlot(0, usable_cores(), usable_cores())


def test_ranks_of_other_hosts_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "usable_cores", lambda: 5)
    others = {0: {0: 1}, 3: {0: 1}, 4: {0: 2}}  # ranks 0, 3 and 4 are on other hosts; 1, 2 and 5 on this one
    slots = [find_host_slot(FakeGroup(rank, 6, others)) for rank in (1, 2, 5)]
    assert [slot.local_rank for slot in slots] == [0, 1, 2]
    assert [slot.cores for slot in slots] == [2, 2, 1]


@needs_affinity
def test_bound_ranks_keep_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "usable_cores", lambda: 4)
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        word, bit = divmod(min(allowed), 32)
        others = {1: {1 + word: 1 << (bit + 1) % 32}}
        assert find_host_slot(FakeGroup(0, 2, others)) == HostSlot(0, 4, 2)
        assert find_host_slot(FakeGroup(2, 3, others)) == HostSlot(2, 2, 2)
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(("size", "expected"), [(2, [None] * 2), (3, [4, 5, 9]), (4, [None] * 4)])
def test_ranks_have_cores_of_their_own_if_there_are_as_many(
    size: int, expected: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "usable_cores", lambda: 3)
    monkeypatch.setattr(hosts, "core_numbers", lambda: [4, 5, 9])
    assert [find_host_slot(FakeGroup(rank, size, {})).own_core for rank in range(size)] == expected


@needs_affinity
def test_rank_is_bound_to_its_core_until_the_runtime_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    with join(RankInfo(0, 1, 0, 1), RuntimeConfig(device="cpu"), [0], [0]) as runtime:
        runtime.pin_to_core()
        assert os.sched_getaffinity(0) == allowed, "a single rank is not bound"
        monkeypatch.setattr(runtime, "_host_slot", HostSlot(0, 1, 1, max(allowed)))
        runtime.pin_to_core()
        assert os.sched_getaffinity(0) == {max(allowed)}
    assert os.sched_getaffinity(0) == allowed


def test_core_set_has_one_bit_per_core() -> None:
    row = hosts._core_set()
    assert sum(word.bit_count() for word in row) == usable_cores()
    assert int(torch.tensor(row).max()) < 2**32
