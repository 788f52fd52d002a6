"""One rank, started by test_processes.py: `member.py KIND SCENARIO RANK SIZE MEETING [MEMORY]`.

Ends with code 0 when everything was as expected; what is lost is printed.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from lockstep.group import shared
from lockstep.group.channel import Spec
from lockstep.group.group import Group, RankLost, ordered_sum
from lockstep.group.network import NetworkGroup, share_host
from lockstep.group.shared import SharedMemoryGroup
from lockstep.group.solo import Solo
from lockstep.randomness import stream

OWN = 2
"""Shards per rank."""
SMALL = 1 << 16
"""Bytes of an arena here, so that payloads of ordinary size need several pieces."""
TIMEOUT = 30.0
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


def check_memory(group: Group) -> None:
    """What is shared has no name in any folder, so nothing can be left behind."""
    maps = Path("/proc/self/maps").read_text()
    assert isinstance(group, SharedMemoryGroup)
    assert "/memfd:lockstep" in maps
    assert "/dev/shm" not in maps


def lose_last(group: Group, verb: str) -> None:
    """The last rank is killed in the middle of its work; the others must be told, not left waiting."""
    last = group.size - 1
    part = group.split(range(1, group.size), [OWN] * last)
    channels = [group.channel(last, target, SPECS, 2, "killed") for target in range(last)]
    for k in range(1000):
        if k == 50 and group.rank == last:
            os.kill(os.getpid(), signal.SIGKILL)
        if verb == "reduce":
            group.reduce(torch.ones(OWN, 100), "killed")
        elif verb == "gather":
            group.gather(torch.ones(OWN, 30_000), "killed")
        elif verb == "barrier":
            group.barrier("killed")
        elif verb == "part":  # rank 0 is no member, and finds out when it meets the others
            if group.rank:
                part.reduce(torch.ones(OWN, 100), "killed")
            elif k == 50:
                group.barrier("killed")
        else:
            for channel in filter(None, channels):
                if group.rank == last:
                    channel.send(k)
                else:
                    channel.receive(k)
            if k < 50:
                group.barrier("next")


def main(kind: str, scenario: str, rank: int, size: int, meeting: str, descriptor: int) -> None:
    torch.set_num_threads(1)
    shared.ARENA = SMALL
    group: Group
    if kind == "shared":
        group = SharedMemoryGroup(descriptor, rank, size, TIMEOUT)
        check_memory(group)
    else:
        group = NetworkGroup("gloo", rank, size, TIMEOUT, meeting)
    if scenario == "work":
        check_verbs(group)
        check_parts(group)
        check_channels(group)
        check_many(group, 2000 if kind == "shared" else 100)
        assert min(group.timings()) > 0
        assert group.timings() == (0.0, 0.0)
        if isinstance(group, NetworkGroup):
            group = share_host(group, TIMEOUT)
            check_memory(group)
            check_verbs(group)
        group.close()
    else:
        lose_last(group, scenario)


if __name__ == "__main__":
    kind, scenario, rank, size, meeting, *rest = sys.argv[1:]
    try:
        main(kind, scenario, int(rank), int(size), meeting, int(rest[0]) if rest else -1)
    except RankLost as lost:
        print(lost, flush=True)
        os._exit(3)
