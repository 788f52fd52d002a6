"""What needs no processes of its own."""

import os
import threading
from pathlib import Path

import pytest
import torch

from lockstep.group import memory, shared
from lockstep.group.group import RankLost, ordered_sum
from lockstep.group.shared import SharedMemoryGroup
from lockstep.group.solo import Solo


def test_an_ordered_sum_adds_one_row_after_the_other() -> None:
    # in float32, (1e8 + 1) - 1e8 is 0 and (1e8 - 1e8) + 1 is 1
    assert ordered_sum(torch.tensor([[1e8], [1.0], [-1e8]])).item() == 0
    assert ordered_sum(torch.tensor([[1e8], [-1e8], [1.0]])).item() == 1


def test_an_ordered_sum_leaves_its_parts_as_they_are() -> None:
    parts = torch.ones(3, 4)
    assert ordered_sum(parts).tolist() == [3] * 4
    assert torch.equal(parts, torch.ones(3, 4))


def test_alone_there_is_nobody_to_wait_for() -> None:
    group, parts = Solo(), torch.rand(3, 4, generator=torch.Generator())
    assert torch.equal(group.gather(parts, "rows"), parts)
    assert torch.equal(group.reduce(parts, "sum"), ordered_sum(parts))
    group.barrier("barrier")
    assert group.timings()[0] == 0


def join(size: int, timeout: float, monkeypatch: pytest.MonkeyPatch) -> list[SharedMemoryGroup]:
    """Ranks that are threads of this process."""
    for module in (memory, shared):
        monkeypatch.setattr(module, "ARENA", 1 << 16)
    descriptor, groups = memory.create_memory(size), {}

    def enter(rank: int) -> None:
        groups[rank] = SharedMemoryGroup(os.dup(descriptor), rank, size, timeout)

    threads = [threading.Thread(target=enter, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(descriptor)
    return [groups[rank] for rank in range(size)]


@pytest.mark.timeout(20)
def test_a_rank_that_does_not_come_is_named_with_the_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = join(3, 0.5, monkeypatch)
    other = threading.Thread(target=groups[1].barrier, args=("advantages",), daemon=True)
    monkeypatch.setattr(threading, "excepthook", lambda lost: None)  # it is not told in time either
    other.start()
    with pytest.raises(
        RankLost, match=r"^rank 2 on host .* is lost in phase 'advantages': it did not arrive within 0\.5 s$"
    ):
        groups[0].barrier("advantages")
    other.join()
    for group in groups:
        group.close()


@pytest.mark.timeout(20)
def test_a_rank_that_never_joins_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "ARENA", 1 << 16)
    with pytest.raises(RankLost, match=r"^rank 1 on host .* in phase 'start'"):
        SharedMemoryGroup(memory.create_memory(2), 0, 2, 0.3)


def test_memory_has_no_name_in_any_folder() -> None:
    descriptor = memory.create_memory(2)
    try:
        assert str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("/memfd:")
        assert os.fstat(descriptor).st_nlink == 0
        assert os.fstat(descriptor).st_blocks == 0  # pages come when they are touched
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)
