"""Shared memory, with ranks that are threads of this process."""

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lockstep.group import shared
from lockstep.group.channel import Channel, Spec
from lockstep.group.group import Group, RankLost, ordered_sum
from lockstep.group.memory import Memory, create_memory
from lockstep.group.shared import SharedMemoryGroup

SPECS: list[Spec] = [((3, 5), torch.float32), ((7,), torch.bool), ((), torch.int64)]
PAGE = os.sysconf("SC_PAGE_SIZE")


def together(work: Callable[[int], None], ranks: int) -> None:
    """`work(rank)` in a thread for each rank; the first error is raised here."""
    errors: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


Join = Callable[..., list[SharedMemoryGroup]]


@pytest.fixture(name="join")
def fixture_join(monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    """`join(3, timeout=1)`: the groups of three ranks."""
    monkeypatch.setattr(shared, "ARENA", 1 << 16)
    joined: list[weakref.ref[SharedMemoryGroup]] = []

    def join(size: int, timeout: float = 10.0) -> list[SharedMemoryGroup]:
        descriptor, groups = create_memory(size), {}

        def enter(rank: int) -> None:
            groups[rank] = SharedMemoryGroup(os.dup(descriptor), rank, size, timeout)

        together(enter, size)
        os.close(descriptor)
        joined.extend(map(weakref.ref, groups.values()))
        return [groups[rank] for rank in range(size)]

    yield join
    for group in filter(None, (found() for found in joined)):
        group.close()


@pytest.mark.timeout(20)
def test_a_rank_that_does_not_come_is_named_with_the_phase(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = join(3, 0.5)
    other = threading.Thread(target=groups[1].barrier, args=("advantages",), daemon=True)
    monkeypatch.setattr(threading, "excepthook", lambda lost: None)  # it is not told in time either
    other.start()
    line = rf"^rank 2 \(process {os.getpid()} on host .*\) is lost in phase 'advantages': it did not arrive within 0\.5 s \(see runtime.timeout\)$"
    with pytest.raises(RankLost, match=line):
        groups[0].barrier("advantages")
    other.join()


@pytest.mark.timeout(20)
def test_a_rank_that_never_joins_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "ARENA", 1 << 16)
    with pytest.raises(RankLost, match=r"^rank 1 on host .* in phase 'start'"):
        SharedMemoryGroup(create_memory(2), 0, 2, 0.3)


@pytest.mark.timeout(20)
def test_in_a_part_and_on_a_channel_it_is_the_rank_of_the_world_that_is_named(join: Join) -> None:
    groups = join(3, 0.3)
    parts = [group.split([1, 2], [1, 1]) for group in groups]
    with pytest.raises(RankLost, match=r"^rank 2 .* in phase 'gradients'"):
        parts[1].reduce(torch.ones(1, 4), "gradients")
    channels = [group.channel(2, 0, SPECS, 1, "rollouts") for group in groups]
    assert channels[0] is not None
    with pytest.raises(RankLost, match=r"^rank 2 .* in phase 'rollouts'"):
        channels[0].receive(0)


def test_memory_has_no_name_in_any_folder() -> None:
    descriptor = create_memory(2)
    try:
        assert str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("/memfd:")
        assert os.fstat(descriptor).st_nlink == 0
        assert os.fstat(descriptor).st_blocks == 0  # pages come when they are touched
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_memory_grows_and_never_shrinks() -> None:
    descriptor = create_memory(2)
    os.set_inheritable(descriptor, True)
    first, second = Memory(os.dup(descriptor)), Memory(descriptor)
    ours = [first.region(size) for size in (100, PAGE, 1 << 30)]
    ours[2][1 << 29] = 7
    length = os.fstat(descriptor).st_size
    second.skip(100)  # it comes later, and takes what it needs from the same places
    theirs = second.region(PAGE)
    assert os.fstat(descriptor).st_size == length
    assert second.region(1 << 30)[1 << 29] == 7
    ours[1][PAGE - 1] = 5
    assert theirs[PAGE - 1] == 5
    assert os.fstat(descriptor).st_blocks * 512 < 100 * PAGE
    assert not os.get_inheritable(descriptor)  # no environment's process gets it
    second.close()
    second.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    first.close()


@pytest.mark.timeout(20)
def test_ranks_contribute_what_they_were_dealt(join: Join) -> None:
    groups, counts = join(3), (2, 0, 3)
    rows = torch.arange(5 * 20_000.0).view(5, 20_000).sqrt()  # several pieces of an arena

    def work(rank: int) -> None:
        part = groups[rank].split([0, 1, 2], counts)
        assert part.counts == counts
        start = sum(counts[:rank])
        mine = rows[start : start + counts[rank]]
        assert torch.equal(part.gather(mine, "rows"), rows)
        assert torch.equal(part.reduce(mine, "sum"), ordered_sum(rows))
        assert part.gather(mine[:, :0], "nothing").shape == (5, 0)
        with pytest.raises(AssertionError, match=f"1 rows from rank {rank}"):
            part.gather(rows[:1], "rows")

    together(work, 3)


@pytest.mark.timeout(20)
def test_a_part_works_while_others_do_something_else(join: Join) -> None:
    groups = join(4)

    def work(rank: int) -> None:
        group = groups[rank]
        parts: list[Group] = [group.split(members, [1, 1]) for members in ([0, 2], [1, 3])]
        mine, other = parts[rank % 2], parts[1 - rank % 2]
        assert (mine.rank, mine.size) == (rank // 2, 2)
        assert (other.rank, other.size) == (0, 1)
        assert mine.clock is other.clock is group.clock
        for k in range(30 if rank % 2 else 50):
            assert mine.gather(torch.tensor([[rank, k]]), "rows").tolist() == [[rank % 2, k], [rank % 2 + 2, k]]
        alone = group.split([3], [2])
        assert (alone.size, alone.counts) == (1, (2,) if rank == 3 else (1,))
        assert group.reduce(torch.ones(2, 3), "sum").tolist() == [8] * 3  # without counts: equally many
        group.barrier("end")

    together(work, 4)


@pytest.mark.timeout(20)
def test_a_channel_is_written_in_place_and_read_in_place(join: Join) -> None:
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
    assert (target.slot(51)[0] == 3).all()  # before anything was sent: it is the same memory
    assert not target.slot(52)[0].any()
    source.send(51)
    target.receive(51)


@pytest.mark.timeout(20)
def test_a_channel_waits_for_its_message(join: Join) -> None:
    groups = join(2)
    source, target = (group.channel(0, 1, SPECS, 2, "rollouts") for group in groups)
    assert source is not None
    assert target is not None
    for group in groups:
        group.timings()
    got = []

    def work(rank: int) -> None:
        for number in (3, 4, 7, 8):
            if rank == 0:
                source.slot(number)[2].fill_(number)
                threading.Event().wait(0.05)
                source.send(number)
            else:
                target.receive(number)
                got.append(int(target.slot(number)[2]))

    together(work, 2)
    assert got == [3, 4, 7, 8]
    assert groups[1].timings()[0] > 0
    assert groups[0].timings() == (0.0, 0.0)


def memories() -> int:
    """How often this process holds shared memory: open files and mapped regions."""
    files = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
    return "\n".join([*files, Path("/proc/self/maps").read_text()]).count("memfd:lockstep")


def test_closing_lets_go_of_the_memory(join: Join) -> None:
    gc.collect()
    before = memories()
    groups = join(2)
    parts = [group.split([0, 1], [1, 1]) for group in groups]
    channels = [group.channel(0, 1, SPECS, 1, "rollouts") for group in groups]
    slot = channels[0].slot(0)
    assert memories() > before
    for group in groups:
        group.close()
        group.close()
    slot[0].fill_(1)  # still there for who holds it
    del slot, channels, parts, group
    groups.clear()
    gc.collect()
    assert memories() == before
