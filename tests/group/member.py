"""One rank, started by test_processes.py: `member.py KIND SCENARIO RANK SIZE MEETING [MEMORY]`.

Ends with code 0 when everything was as expected; what is lost is printed.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from lockstep.group import neighbours, shared
from lockstep.group.channel import Spec
from lockstep.group.group import Group, RankLost, ordered_sum
from lockstep.group.host import SharedMemoryChannel
from lockstep.group.network import NetworkGroup, share_host
from lockstep.group.shared import SharedMemoryGroup
from lockstep.group.solo import Solo
from lockstep.randomness import stream

OWN = 2
"""Shards per rank."""
SMALL = 1 << 16
"""Bytes of an arena here, so that payloads of ordinary size need several pieces."""
TIMEOUT = 30.0
ALONE = {"hosts": 0, "machines": -1}
"""The rank that has a host for itself, in a world on several."""
SPECS: list[Spec] = [((5, 7), torch.float32), ((70_000,), torch.uint8), ((3,), torch.bool), ((), torch.int64)]


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.dtype == expected.dtype and found.shape == expected.shape and torch.equal(found, expected)


def check_verbs(group: Group) -> None:
    """Every verb gives what one rank that carries all shards gets, to the last bit."""
    mine = slice(group.rank * OWN, (group.rank + 1) * OWN)
    for dtype in (torch.float32, torch.float64):
        for columns in (1, 7, 1000, 5000):
            drawn = stream(1, "test", columns).standard_normal((group.size * OWN, columns)) * 1e3
            rows = torch.from_numpy(drawn).to(dtype)
            assert same(group.reduce(rows[mine], "sum"), Solo().reduce(rows, "sum")), (dtype, columns)
            assert same(group.gather(rows[mine], "rows"), rows), (dtype, columns)
    for dtype in (torch.uint8, torch.int64, torch.bool):
        for shape in ((3, 5), (30_000,), (), (0,)):
            numbers = stream(2, "test").integers(0, 256, (group.size * OWN, *shape))
            rows = torch.from_numpy(numbers).to(dtype)
            assert same(group.gather(rows[mine], "rows"), rows), (dtype, shape)
    strided = torch.arange(group.size * OWN * 6.0).view(group.size * OWN, 6)[:, ::2]
    assert same(group.gather(strided[mine], "rows"), strided)
    group.barrier("barrier")


def check_parts(group: Group) -> None:
    """Parts with shares of their own, that overlap."""
    world = range(group.size)
    for members in (world, world[:-1], world[1:], (0, group.size - 1)):
        counts = [1 + member * 2 % 3 for member in members]
        part = group.split(tuple(members), counts)
        if group.rank not in members:
            assert part.size == 1
            continue
        assert (part.size, part.rank, part.counts) == (len(members), members.index(group.rank), tuple(counts))
        start = sum(counts[: part.rank])
        for columns in (1, 1000, 5000):
            drawn = stream(5, "test", columns).standard_normal((sum(counts), columns)) * 1e3
            rows = torch.from_numpy(drawn).to(torch.float32)
            mine = rows[start : start + counts[part.rank]]
            assert same(part.reduce(mine, "sum"), ordered_sum(rows))
            assert same(part.gather(mine > 0, "rows"), rows > 0)
        part.barrier("barrier")


def check_channels(group: Group, rounds: int = 20) -> None:
    """Messages from everybody to everybody, while ranks dawdle at random."""
    channels = {
        (source, target): group.channel(source, target, SPECS, 2, "rollouts")
        for source in range(group.size)
        for target in range(group.size)
    }
    for (source, target), channel in channels.items():
        assert (channel is not None) == (group.rank in (source, target))
    sent = {ends[1]: channel for ends, channel in channels.items() if channel and ends[0] == group.rank}
    received = {ends[0]: channel for ends, channel in channels.items() if channel and ends[1] == group.rank}
    slots = {target: [channel.slot(number) for number in (0, 1)] for target, channel in sent.items()}
    pauses = stream(6, "test", group.rank).random(rounds) < 0.2
    for number, pause in enumerate(pauses, start=51):
        if pause:
            time.sleep(5e-3)
        for target, channel in sent.items():
            tensors = channel.slot(number)
            assert tensors is slots[target][number % 2]
            for tensor in tensors:
                tensor.fill_((number * 100 + group.rank * 10 + target) % 251)
            channel.send(number)
        for source, channel in received.items():
            channel.receive(number)
            for (shape, dtype), tensor in zip(SPECS, channel.slot(number), strict=True):
                expected = torch.full(shape, (number * 100 + source * 10 + group.rank) % 251).to(dtype)
                assert same(tensor, expected), (source, number)
        group.barrier("next")


def check_order(group: Group) -> None:
    """A message may be passed over, and one that was sent may be asked for twice."""
    last = group.size - 1
    channel = group.channel(last, 0, SPECS, 4, "order")
    if group.rank == last:
        for number in (1, 2, 4):
            channel.slot(number)[3].fill_(number)
            channel.send(number)
    elif group.rank == 0:
        channel.receive(2)
        assert channel.slot(2)[3] == 2
        channel.receive(4)
        channel.receive(1)
        assert [int(channel.slot(number)[3]) for number in (1, 2, 4)] == [1, 2, 4]
    group.barrier("order")


def check_end(group: Group) -> bool:
    """What was sent arrives, though the source leaves at once. What nobody asks for holds nobody up.

    Returns whether torch.distributed could be used until the end.
    """
    last = group.size - 1
    wanted, unwanted = (group.channel(*ends, SPECS, 1, "end") for ends in ((0, last), (last, 0)))
    group.barrier("end")
    met = dist.is_initialized()
    if group.rank == 0:
        wanted.slot(0)[0].fill_(7)
        wanted.send(0)
    elif group.rank == last:
        unwanted.send(0)
        time.sleep(0.5)
        wanted.receive(0)
        assert (wanted.slot(0)[0] == 7).all()
    group.close()
    assert not dist.is_initialized()
    return met


def check_hosts(group: NetworkGroup, alone: int) -> None:
    """Only what is between ranks of one host goes through its memory."""
    pairs = [(source, target) for source in range(group.size) for target in range(group.size) if source != target]
    for ends in pairs:
        channel = group.channel(*ends, SPECS, 1, "hosts")
        assert isinstance(channel, SharedMemoryChannel) == (group.rank in ends and alone not in ends)
        part = group.split(sorted(ends), [1, 1])
        assert isinstance(part, SharedMemoryGroup) == (group.rank in ends and alone not in ends)


def check_padding(group: NetworkGroup) -> None:
    """What NCCL does for tensors on devices, by gloo: shares of different sizes."""
    counts = [2, 0, 3, 1][: group.size]
    rows = torch.arange(sum(counts) * 5.0).view(-1, 5)
    start = sum(counts[: group.rank])
    mine = rows[start : start + counts[group.rank]]
    assert same(group._move_devices(mine, counts, "rows"), rows)
    assert same(group._move_devices(rows[:2] + group.rank, [2] * group.size, "rows")[-2:], rows[:2] + group.size - 1)
    assert same(group._move_devices(mine[:, :0], counts, "rows"), rows[:, :0])


def check_devices(group: Group) -> None:
    """What lies on a device comes back on it, for the world and for a part with shares of its own."""
    kind = os.environ["LOCKSTEP_TEST_DEVICE"]
    device = torch.device(kind, group.rank % torch.cuda.device_count()) if kind == "cuda" else torch.device(kind)
    counts = [1 + rank % 2 for rank in range(group.size)]
    for part, shares in ((group, [OWN] * group.size), (group.split(range(group.size), counts), counts)):
        start = sum(shares[: group.rank])
        for dtype in (torch.float32, torch.int64, torch.bool):
            for shape in ((1,), (5000,), (3, 5), (0,)):
                drawn = stream(7, "test").standard_normal((sum(shares), *shape)) * 1e3
                rows = torch.from_numpy(drawn).to(dtype)
                mine = rows[start : start + shares[group.rank]].to(device)
                found = part.gather(mine, "rows")
                assert found.device == device
                assert same(found.cpu(), rows)
                if len(shape) == 1 and dtype == torch.float32:
                    total = part.reduce(mine, "sum")
                    assert total.device == device
                    assert same(total.cpu(), ordered_sum(rows))
    group.close()


def check_many(group: Group, rounds: int) -> None:
    """Reductions of random sizes, one right after the other, while ranks dawdle at random."""
    sizes = stream(3, "test").integers(1, 400, rounds).tolist()
    pauses = stream(4, "test", group.rank).random(rounds) < 0.02
    for k, columns in enumerate(sizes):
        rows = (
            torch.arange(group.size * OWN * columns, dtype=torch.float32)
            .view(group.size * OWN, columns)
            .add_(k)
            .sqrt_()
        )
        total = group.reduce(rows[group.rank * OWN : (group.rank + 1) * OWN], "many")
        assert torch.equal(total, ordered_sum(rows)), k
        if pauses[k]:
            time.sleep(1e-3)


def check_scheduling() -> None:
    """Gloo's thread does not interrupt the one that sends (SCHED_BATCH)."""
    tasks = [task for task in Path("/proc/self/task").iterdir() if "gloo_tcp_loop" in task.joinpath("comm").read_text()]
    assert [os.sched_getscheduler(int(task.name)) for task in tasks] == [os.SCHED_BATCH]


def memories() -> str:
    return Path("/proc/self/maps").read_text()


def lose_last(group: Group, verb: str) -> None:
    """The last rank is killed, or stopped, in the middle of its work; the others must be told, not left waiting."""
    last = group.size - 1
    part = group.split(range(1, group.size), [OWN] * last)
    channels = [group.channel(last, target, SPECS, 2, "lost") for target in range(last)]
    for k in range(1000):
        if k == 50 and group.rank == last and verb != "apart":
            os.kill(os.getpid(), signal.SIGSTOP if verb == "late" else signal.SIGKILL)
        if verb == "reduce":
            group.reduce(torch.ones(OWN, 100), "lost")
        elif verb == "gather":
            group.gather(torch.ones(OWN, 30_000), "lost")
        elif verb == "barrier":
            group.barrier("lost")
        elif verb == "apart":  # the network between the hosts goes down
            group.reduce(torch.ones(OWN, 100), "lost")
            if k == 50:
                print("going on", flush=True)
            time.sleep(0.01)
        elif verb == "late":  # rank 0 gives up first, and rank 1 must not think that it is rank 0 that was lost
            if k == 50 and group.rank:
                time.sleep(1)
            group.reduce(torch.ones(OWN, 100), "lost")
        elif verb == "part":  # rank 0 is no member. It finds out when it meets the others, who have ended by then
            if group.rank:
                part.reduce(torch.ones(OWN, 100), "lost")
            elif k == 50:
                time.sleep(1)
                group.barrier("lost")
        else:
            for channel in filter(None, channels):
                if group.rank == last:
                    channel.send(k)
                else:
                    channel.receive(k)
            if k < 50:
                group.barrier("next")


def join(kind: str, rank: int, size: int, meeting: str, descriptor: int, timeout: float) -> Group:
    """The group of a kind: `shared`, `network`, `moved` from the network to shared memory, or one of several hosts.

    On `hosts` rank 0 only claims to be elsewhere; on `machines` the last rank really is.
    """
    if kind == "shared":
        group: Group = SharedMemoryGroup(descriptor, rank, size, timeout)
        assert "/memfd:lockstep" in memories()
        assert "/dev/shm" not in memories()
        return group
    network = NetworkGroup("nccl" if kind == "nccl" else "gloo", rank, size, timeout, meeting)
    if kind in ("network", "nccl"):
        return network
    if kind == "hosts":
        neighbours._host = lambda: min(rank, 1)
    group = share_host(network, timeout)
    assert isinstance(group, SharedMemoryGroup) == (kind == "moved")
    assert ("/memfd:lockstep" in memories()) == (kind == "moved" or rank != ALONE[kind] % size)
    return group


def work(group: Group, kind: str) -> None:
    """Everything that should go well."""
    check_verbs(group)
    check_parts(group)
    check_channels(group)
    check_order(group)
    check_many(group, 2000 if kind == "shared" else 100)
    assert min(group.timings()) > 0
    assert group.timings() == (0.0, 0.0)
    if isinstance(group, NetworkGroup):
        check_padding(group)
        check_scheduling()
    if kind in ALONE:
        check_hosts(group, ALONE[kind] % group.size)
    assert check_end(group) == (kind != "shared")


def main(kind: str, scenario: str, rank: int, size: int, meeting: str, descriptor: int) -> None:
    torch.set_num_threads(1)
    shared.ARENA = SMALL
    group = join(kind, rank, size, meeting, descriptor, 3.0 if scenario in ("late", "absent", "apart") else TIMEOUT)
    if scenario == "work":
        work(group, kind)
    elif scenario == "devices":
        check_devices(group)
    else:
        lose_last(group, scenario)


if __name__ == "__main__":
    kind, scenario, rank, size, meeting, *rest = sys.argv[1:]
    try:
        main(kind, scenario, int(rank), int(size), meeting, int(rest[0]) if rest else -1)
    except RankLost as lost:
        print(lost, flush=True)
        sys.exit(3)
