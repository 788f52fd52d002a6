"""Ranks of one host: who is which of them, and which cores are whose."""

import os

import pytest
import torch
from torch import Tensor

from lockstep.group.memory import usable_cores
from lockstep.group.solo import Solo
from lockstep.runtime import hosts
from lockstep.runtime.hosts import HostSlot, take_seat
from lockstep.runtime.threads import share_of_cores

needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no processes")


@pytest.mark.parametrize("cores", range(1, 9))
@pytest.mark.parametrize("ranks", range(1, 9))
def test_no_core_is_idle_and_none_is_shared_without_need(cores: int, ranks: int) -> None:
    shares = [share_of_cores(rank, ranks, cores) for rank in range(ranks)]
    assert sum(shares) == max(cores, ranks)
    assert max(shares) - min(shares) <= 1
    assert min(shares) >= 1


class Among(Solo):
    """A rank among others, whose rows are given as functions of its own."""

    def __init__(self, rank: int, size: int, others: dict[int, dict[int, int]]) -> None:
        super().__init__()
        self.rank, self.size, self._others = rank, size, others

    def gather(self, parts: Tensor, phase: str) -> Tensor:
        rows = parts.repeat(self.size, 1)
        for rank, changes in self._others.items():
            for column, value in changes.items():
                rows[rank, column] = value
        return rows


def test_alone_all_cores_are_its_own() -> None:
    assert take_seat(Solo()) == HostSlot(0, usable_cores(), usable_cores())


def test_ranks_of_other_hosts_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "usable_cores", lambda: 5)
    others = {0: {0: 1}, 3: {0: 1}, 4: {0: 2}}  # ranks 0, 3 and 4 are elsewhere; 1, 2 and 5 here
    seats = [take_seat(Among(rank, 6, others)) for rank in (1, 2, 5)]
    assert [seat.local_rank for seat in seats] == [0, 1, 2]
    assert [seat.cores for seat in seats] == [2, 2, 1]


@needs_affinity
def test_ranks_that_are_bound_keep_their_own_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "usable_cores", lambda: 4)
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        word, bit = divmod(min(allowed), 32)
        elsewhere = {1: {1 + word: 1 << (bit + 1) % 32}}
        assert take_seat(Among(0, 2, elsewhere)) == HostSlot(0, 4, 2)
        assert take_seat(Among(2, 3, elsewhere)) == HostSlot(2, 2, 2)
    finally:
        os.sched_setaffinity(0, allowed)


def test_cores_are_numbered_by_bits() -> None:
    row = hosts._cores()
    assert sum(word.bit_count() for word in row) == usable_cores()
    assert int(torch.tensor(row).max()) < 2**32
