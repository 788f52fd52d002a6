"""One rank, started by test_processes.py: `member.py SCENARIO RANK SIZE MEETING [MEMORY]`.

Ends with code 0 when everything was as expected; what is lost is printed.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from lockstep.group import memory, shared
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
        for shape in ((3, 5), (30_000,), ()):
            numbers = stream(2, "test").integers(0, 256, (group.size * OWN, *shape))
            rows = torch.from_numpy(numbers).to(dtype)
            assert same(group.gather(rows[mine], "rows"), rows), (dtype, shape)
    strided = torch.arange(group.size * OWN * 6.0).view(group.size * OWN, 6)[:, ::2]
    assert same(group.gather(strided[mine], "rows"), strided)
    group.barrier("barrier")


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


def lose_last(group: Group) -> None:
    """The last rank is killed between two reductions; the others must be told, not left waiting."""
    for k in range(1000):
        if k == 50 and group.rank == group.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group.reduce(torch.ones(OWN, 100), "gradients")


def check_memory(group: Group) -> None:
    """What is shared has no name in any folder, so nothing can be left behind."""
    maps = Path("/proc/self/maps").read_text()
    assert isinstance(group, SharedMemoryGroup)
    assert "/memfd:lockstep" in maps
    assert "/dev/shm" not in maps


def main(scenario: str, rank: int, size: int, meeting: str, descriptor: int) -> None:
    torch.set_num_threads(1)
    memory.ARENA = shared.ARENA = SMALL
    if scenario == "network":
        network = NetworkGroup("gloo", rank, size, TIMEOUT, meeting)
        check_verbs(network)
        group = share_host(network, TIMEOUT)
        check_memory(group)
        check_verbs(group)
        lose_last(network)
    group = SharedMemoryGroup(descriptor, rank, size, TIMEOUT)
    if scenario == "verbs":
        check_memory(group)
        check_verbs(group)
        check_many(group, 2000)
        assert min(group.timings()) > 0
        assert group.timings() == (0.0, 0.0)
        group.close()
    if scenario == "killed":
        lose_last(group)


if __name__ == "__main__":
    scenario, rank, size, meeting, *rest = sys.argv[1:]
    try:
        main(scenario, int(rank), int(size), meeting, int(rest[0]) if rest else -1)
    except RankLost as lost:
        print(lost, flush=True)
        os._exit(3)
