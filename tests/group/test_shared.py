"""Tests of shared memory, with ranks that are threads of this process."""

import gc
import os
import subprocess
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lockstep.group import shared
from lockstep.group.channel import Channel, Spec
from lockstep.group.group import Group, RankLost, ordered_sum
from lockstep.group.memory import RegionAllocator, create_memory
from lockstep.group.shared import SharedMemoryGroup
from lockstep.processes import exit_codes, heartbeat

SPECS: list[Spec] = [((3, 5), torch.float32), ((7,), torch.bool), ((), torch.int64)]
PAGE = os.sysconf("SC_PAGE_SIZE")


def run_ranks(work: Callable[[int], None], ranks: int) -> None:
    """Run `work(rank)` in a thread for each rank, and raise the first error."""
    errors: list[BaseException] = []

    def catch_errors(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=catch_errors, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


Join = Callable[..., list[SharedMemoryGroup]]


@pytest.fixture(name="join")
def fixture_join(monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    """Return `join(size, timeout)`, which creates the groups of `size` ranks. They are closed after the test."""
    monkeypatch.setattr(shared, "ARENA", 1 << 16)
    joined: list[weakref.ref[SharedMemoryGroup]] = []

    def join(size: int, timeout: float = 10.0) -> list[SharedMemoryGroup]:
        descriptor, groups = create_memory(size), {}

        def enter(rank: int) -> None:
            groups[rank] = SharedMemoryGroup(os.dup(descriptor), rank, size, timeout)

        run_ranks(enter, size)
        os.close(descriptor)
        joined.extend(map(weakref.ref, groups.values()))
        return [groups[rank] for rank in range(size)]

    yield join
    for group in filter(None, (reference() for reference in joined)):
        group.close()


@pytest.mark.timeout(20)
def test_missing_rank_is_reported_with_the_phase(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = join(3, 0.5)
    other = threading.Thread(target=groups[1].barrier, args=("advantages",), daemon=True)
    monkeypatch.setattr(threading, "excepthook", lambda error: None)  # the thread raises RankLost too
    other.start()
    line = rf"^rank 2 \(process {os.getpid()} on host .*\) is lost in phase 'advantages': no heartbeat for \d s in stage start \(see runtime.timeout\)$"
    with pytest.raises(RankLost, match=line):
        groups[0].barrier("advantages")
    other.join()


@pytest.mark.timeout(20)
def test_rank_that_does_not_join_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "ARENA", 1 << 16)
    with pytest.raises(RankLost, match=r"^rank 1 on host .* in phase 'start'"):
        SharedMemoryGroup(create_memory(2), 0, 2, 0.3)


@pytest.mark.timeout(20)
def test_subgroups_and_channels_report_the_global_number_of_the_lost_rank(join: Join) -> None:
    groups = join(3, 0.3)
    subgroups = [group.split([1, 2], [1, 1]) for group in groups]
    with pytest.raises(RankLost, match=r"^rank 2 .* in phase 'gradients'"):
        subgroups[1].reduce(torch.ones(1, 4), "gradients")
    channels = [group.channel(2, 0, SPECS, 1, "rollouts") for group in groups]
    assert channels[0] is not None
    with pytest.raises(RankLost, match=r"^rank 2 .* in phase 'rollouts'"):
        channels[0].receive(0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("code", "reported"),
    [(None, False), (exit_codes.DONE, False), (exit_codes.NON_FINITE, False), (1, True), (4, True)],
)
def test_a_lost_rank_that_has_reported_its_error_is_marked(code: int | None, reported: bool, join: Join) -> None:
    groups = join(2)
    with subprocess.Popen(["true"]) as ended:
        pass
    cells = groups[0]._host._cells_of(1)
    cells[heartbeat.PROCESS] = ended.pid
    cells[heartbeat._EXIT_CODE] = 0 if code is None else code + 1
    with pytest.raises(RankLost, match="its process has ended") as caught:
        groups[0].barrier("statistics")
    assert caught.value.reported == reported


def test_memory_has_no_name_in_the_file_system() -> None:
    descriptor = create_memory(2)
    try:
        assert str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("/memfd:")
        assert os.fstat(descriptor).st_nlink == 0
        assert os.fstat(descriptor).st_blocks == 0  # pages are allocated when they are touched
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_memory_grows_and_never_shrinks() -> None:
    descriptor = create_memory(2)
    os.set_inheritable(descriptor, True)
    first, second = RegionAllocator(os.dup(descriptor)), RegionAllocator(descriptor)
    first_regions = [first.region(size) for size in (100, PAGE, 1 << 30)]
    first_regions[2][1 << 29] = 7
    length = os.fstat(descriptor).st_size
    second.skip(100)  # a rank that maps the same regions later gets the same memory
    second_region = second.region(PAGE)
    assert os.fstat(descriptor).st_size == length
    assert second.region(1 << 30)[1 << 29] == 7
    first_regions[1][PAGE - 1] = 5
    assert second_region[PAGE - 1] == 5
    assert os.fstat(descriptor).st_blocks * 512 < 100 * PAGE
    assert not os.get_inheritable(descriptor)  # processes of environments do not inherit it
    second.close()
    second.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    first.close()


@pytest.mark.timeout(20)
def test_ranks_contribute_the_counts_given_to_split(join: Join) -> None:
    groups, counts = join(3), (2, 0, 3)
    rows = torch.arange(5 * 20_000.0).view(5, 20_000).sqrt()  # more than one arena: several pieces

    def work(rank: int) -> None:
        subgroup = groups[rank].split([0, 1, 2], counts)
        assert subgroup.counts == counts
        start = sum(counts[:rank])
        own_rows = rows[start : start + counts[rank]]
        assert torch.equal(subgroup.gather(own_rows, "rows"), rows)
        assert torch.equal(subgroup.reduce(own_rows, "sum"), ordered_sum(rows))
        assert subgroup.gather(own_rows[:, :0], "nothing").shape == (5, 0)
        with pytest.raises(AssertionError, match=f"1 rows from rank {rank}"):
            subgroup.gather(rows[:1], "rows")

    run_ranks(work, 3)


@pytest.mark.timeout(20)
def test_subgroups_work_independently(join: Join) -> None:
    groups = join(4)

    def work(rank: int) -> None:
        group = groups[rank]
        subgroups: list[Group] = [group.split(members, [1, 1]) for members in ([0, 2], [1, 3])]
        subgroup, other = subgroups[rank % 2], subgroups[1 - rank % 2]
        assert (subgroup.rank, subgroup.size) == (rank // 2, 2)
        assert (other.rank, other.size) == (0, 1)
        assert subgroup.clock is other.clock is group.clock
        for k in range(30 if rank % 2 else 50):
            assert subgroup.gather(torch.tensor([[rank, k]]), "rows").tolist() == [[rank % 2, k], [rank % 2 + 2, k]]
        solo = group.split([3], [2])
        assert (solo.size, solo.counts) == (1, (2,) if rank == 3 else ())
        assert (
            group.reduce(torch.ones(2, 3), "sum").tolist() == [8] * 3
        )  # without counts: the same number of rows from each rank
        group.barrier("end")

    run_ranks(work, 4)


@pytest.mark.timeout(20)
def test_source_and_target_of_a_channel_share_memory(join: Join) -> None:
    groups = join(3)
    ends: list[list[Channel | None]] = [
        [group.channel(*ends, SPECS, 2, "rollouts") for ends in ((2, 0), (0, 2), (1, 1))] for group in groups
    ]
    assert [[end is not None for end in row] for row in ends] == [
        [True, True, False],
        [False, False, True],
        [True, True, False],
    ]
    target, source = ends[0][0], ends[2][0]
    assert source is not None
    assert target is not None
    assert all(tensor.data_ptr() % 64 == 0 for number in (0, 1) for tensor in source.slot(number))
    assert not any(tensor.any() for number in (0, 1) for tensor in target.slot(number))
    source.slot(51)[0].fill_(3)
    assert (target.slot(51)[0] == 3).all()  # before `send`: it is the same memory
    assert not target.slot(52)[0].any()
    source.send(51)
    target.receive(51)


@pytest.mark.timeout(20)
def test_receive_waits_for_the_message(join: Join) -> None:
    groups = join(2)
    source, target = (group.channel(0, 1, SPECS, 2, "rollouts") for group in groups)
    assert source is not None
    assert target is not None
    for group in groups:
        group.timings()
    received = []

    def work(rank: int) -> None:
        for number in (3, 4, 7, 8):
            if rank == 0:
                source.slot(number)[2].fill_(number)
                threading.Event().wait(0.05)
                source.send(number)
            else:
                target.receive(number)
                received.append(int(target.slot(number)[2]))

    run_ranks(work, 2)
    assert received == [3, 4, 7, 8]
    assert groups[1].timings()[0] > 0
    assert groups[0].timings() == (0.0, 0.0)


def count_shared_memories() -> int:
    """Count the open files and mapped regions of shared memory of this process."""
    files = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
    return "\n".join([*files, Path("/proc/self/maps").read_text()]).count("memfd:lockstep")


def test_closing_releases_the_memory(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise the heartbeat, which belongs to the process, would keep the memory.
    monkeypatch.setattr(heartbeat, "is_watched", lambda: True)
    gc.collect()
    before = count_shared_memories()
    groups = join(2)
    subgroups = [group.split([0, 1], [1, 1]) for group in groups]
    channels = [group.channel(0, 1, SPECS, 1, "rollouts") for group in groups]
    slot = channels[0].slot(0)
    assert count_shared_memories() > before
    for group in groups:
        group.close()
        group.close()
    slot[0].fill_(1)  # the slot stays valid
    del slot, channels, subgroups, group
    groups.clear()
    gc.collect()
    assert count_shared_memories() == before
