"""Program of one rank, started by test_processes.py and test_hosts.py: `member.py KIND SCENARIO RANK SIZE ADDRESS [MEMORY]`.

Its exit code is 0 if everything was as expected, and 3 if a rank was lost: then it prints the error.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from lockstep.group import host_chain, neighbors, reduction, shared
from lockstep.group.channel import Spec
from lockstep.group.group import Group, RankLost, ordered_sum
from lockstep.group.host import SharedMemoryChannel
from lockstep.group.network import NetworkGroup, upgrade_to_shared_memory
from lockstep.group.shared import SharedMemoryGroup
from lockstep.group.solo import Solo
from lockstep.randomness import stream

SHARDS = 2
"""Shards per rank."""
SMALL = 1 << 16
"""Bytes of an arena in these tests, so that payloads of ordinary size need several pieces."""
TIMEOUT = 30.0
LIMITS = {"partition": 3.0, "late": 8.0, "absent": 8.0}
"""Timeouts of scenarios in which ranks wait for a lost one."""
SECRET = b"0123456789abcdef"
ALONE = {"hosts": 0, "machines": -1}
"""The rank that is alone on its host, by the kinds that have several hosts."""
SPECS: list[Spec] = [((5, 7), torch.float32), ((70_000,), torch.uint8), ((3,), torch.bool), ((), torch.int64)]


def same(tensor: torch.Tensor, expected: torch.Tensor) -> bool:
    return tensor.dtype == expected.dtype and tensor.shape == expected.shape and torch.equal(tensor, expected)


def check_operations(group: Group) -> None:
    """Check that every operation gives the same bits as one rank that has all shards."""
    rank_rows = slice(group.rank * SHARDS, (group.rank + 1) * SHARDS)
    for dtype in (torch.float32, torch.float64):
        for columns in (1, 7, 1000, 5000):
            drawn = stream(1, "test", columns).standard_normal((group.size * SHARDS, columns)) * 1e3
            rows = torch.from_numpy(drawn).to(dtype)
            assert same(group.reduce(rows[rank_rows], "sum"), Solo().reduce(rows, "sum")), (dtype, columns)
            assert same(group.gather(rows[rank_rows], "rows"), rows), (dtype, columns)
            group.clock.read()
            pending = group.begin_reduce(rows[rank_rows], "sum")
            time.sleep(0.01 * (columns == 1000))
            assert same(pending.result(), Solo().reduce(rows, "sum")), (dtype, columns)
    for dtype in (torch.uint8, torch.int64, torch.bool):
        for shape in ((3, 5), (30_000,), (), (0,)):
            numbers = stream(2, "test").integers(0, 256, (group.size * SHARDS, *shape))
            rows = torch.from_numpy(numbers).to(dtype)
            assert same(group.gather(rows[rank_rows], "rows"), rows), (dtype, shape)
    strided = torch.arange(group.size * SHARDS * 6.0).view(group.size * SHARDS, 6)[:, ::2]
    assert same(group.gather(strided[rank_rows], "rows"), strided)
    group.barrier("barrier")


def check_subgroups(group: Group) -> None:
    """Check overlapping subgroups with different row counts."""
    world = range(group.size)
    for members in (world, world[:-1], world[1:], (0, group.size - 1)):
        counts = [1 + member * 2 % 3 for member in members]
        subgroup = group.split(tuple(members), counts)
        if group.rank not in members:
            assert subgroup.size == 1
            continue
        assert (subgroup.size, subgroup.rank, subgroup.counts) == (
            len(members),
            members.index(group.rank),
            tuple(counts),
        )
        start = sum(counts[: subgroup.rank])
        for columns in (1, 1000, 5000):
            drawn = stream(5, "test", columns).standard_normal((sum(counts), columns)) * 1e3
            rows = torch.from_numpy(drawn).to(torch.float32)
            own_rows = rows[start : start + counts[subgroup.rank]]
            assert same(subgroup.reduce(own_rows, "sum"), ordered_sum(rows))
            assert same(subgroup.gather(own_rows > 0, "rows"), rows > 0)
        subgroup.barrier("barrier")


def check_channels(group: Group, rounds: int = 20) -> None:
    """Send messages between all pairs of ranks, with pauses at random."""
    channels = {
        (source, target): group.channel(source, target, SPECS, 2, "rollouts")
        for source in range(group.size)
        for target in range(group.size)
    }
    for (source, target), channel in channels.items():
        assert (channel is not None) == (group.rank in (source, target))
    outgoing = {ends[1]: channel for ends, channel in channels.items() if channel and ends[0] == group.rank}
    incoming = {ends[0]: channel for ends, channel in channels.items() if channel and ends[1] == group.rank}
    slots = {target: [channel.slot(number) for number in (0, 1)] for target, channel in outgoing.items()}
    pauses = stream(6, "test", group.rank).random(rounds) < 0.2
    for number, pause in enumerate(pauses, start=51):
        if pause:
            time.sleep(5e-3)
        for target, channel in outgoing.items():
            tensors = channel.slot(number)
            assert tensors is slots[target][number % 2]
            for tensor in tensors:
                tensor.fill_((number * 100 + group.rank * 10 + target) % 251)
            channel.send(number)
        for source, channel in incoming.items():
            channel.receive(number)
            for (shape, dtype), tensor in zip(SPECS, channel.slot(number), strict=True):
                expected = torch.full(shape, (number * 100 + source * 10 + group.rank) % 251).to(dtype)
                assert same(tensor, expected), (source, number)
        group.barrier("next")


def check_order(group: Group) -> None:
    """Check that messages can be skipped, and that a message that has arrived can be received again."""
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


def check_finished_count(group: Group) -> None:
    """Check that ranks see how many shards have finished an iteration, also while others are one ahead."""
    finished, shards = group.finished_count(2 * group.size), 2 * group.size
    for iteration in range(5, 16):
        last = iteration % group.size
        if group.rank == last:
            deadline = time.monotonic() + TIMEOUT
            while finished.total(iteration) < shards - 2 and time.monotonic() < deadline:
                time.sleep(0.001)
            assert finished.total(iteration) == shards - 2
        else:
            assert finished.total(iteration) <= shards - 2
        finished.finish(iteration, 2)
        if iteration % 3 == 0:
            group.barrier("finished")


def check_end(group: Group) -> bool:
    """Close the group: messages that were sent still arrive, and one that is never received does not block.

    Return True if torch.distributed was initialized until the group was closed.
    """
    last = group.size - 1
    received, ignored = (group.channel(*ends, SPECS, 1, "end") for ends in ((0, last), (last, 0)))
    group.barrier("end")
    initialized = dist.is_initialized()
    if group.rank == 0:
        received.slot(0)[0].fill_(7)
        received.send(0)
    elif group.rank == last:
        ignored.send(0)
        time.sleep(0.5)
        received.receive(0)
        assert (received.slot(0)[0] == 7).all()
    group.close()
    assert not dist.is_initialized()
    return initialized


def check_hosts(group: NetworkGroup, alone: int) -> None:
    """Check that ranks of one host, and only those, use shared memory."""
    pairs = [(source, target) for source in range(group.size) for target in range(group.size) if source != target]
    for ends in pairs:
        channel = group.channel(*ends, SPECS, 1, "hosts")
        assert isinstance(channel, SharedMemoryChannel) == (group.rank in ends and alone not in ends)
        subgroup = group.split(sorted(ends), [1, 1])
        assert isinstance(subgroup, SharedMemoryGroup) == (group.rank in ends and alone not in ends)


def check_padding(group: NetworkGroup) -> None:
    """Check with gloo the padding that NCCL needs if ranks contribute different numbers of rows."""
    counts = [2, 0, 3, 1, 2][: group.size]
    rows = torch.arange(sum(counts) * 5.0).view(-1, 5)
    start = sum(counts[: group.rank])
    own_rows = rows[start : start + counts[group.rank]]
    assert same(group._move_on_devices(own_rows, counts, "rows"), rows)
    assert same(group._move_on_devices(rows[:2] + group.rank, [2] * group.size, "rows")[-2:], rows[:2] + group.size - 1)
    assert same(group._move_on_devices(own_rows[:, :0], counts, "rows"), rows[:, :0])


def check_devices(group: Group) -> None:
    """Check that results are on the device of the input, for all ranks and for a subgroup with row counts."""
    kind = os.environ["LOCKSTEP_TEST_DEVICE"]
    device = torch.device(kind, group.rank % torch.cuda.device_count()) if kind == "cuda" else torch.device(kind)
    counts = [1 + rank % 2 for rank in range(group.size)]
    for members, shares in ((group, [SHARDS] * group.size), (group.split(range(group.size), counts), counts)):
        start = sum(shares[: group.rank])
        for dtype in (torch.float32, torch.int64, torch.bool):
            for shape in ((1,), (5000,), (3, 5), (0,)):
                drawn = stream(7, "test").standard_normal((sum(shares), *shape)) * 1e3
                rows = torch.from_numpy(drawn).to(dtype)
                own_rows = rows[start : start + shares[group.rank]].to(device)
                gathered = members.gather(own_rows, "rows")
                assert gathered.device == device
                assert same(gathered.cpu(), rows)
                if len(shape) == 1 and dtype == torch.float32:
                    total = members.reduce(own_rows, "sum")
                    assert total.device == device
                    assert same(total.cpu(), ordered_sum(rows))
    group.close()


def check_many(group: Group, rounds: int) -> None:
    """Run many reductions of random sizes, with pauses at random."""
    sizes = stream(3, "test").integers(1, 400, rounds).tolist()
    pauses = stream(4, "test", group.rank).random(rounds) < 0.02
    for k, columns in enumerate(sizes):
        rows = (
            torch.arange(group.size * SHARDS * columns, dtype=torch.float32)
            .view(group.size * SHARDS, columns)
            .add_(k)
            .sqrt_()
        )
        total = group.reduce(rows[group.rank * SHARDS : (group.rank + 1) * SHARDS], "many")
        assert torch.equal(total, ordered_sum(rows)), k
        if pauses[k]:
            time.sleep(1e-3)


def check_scheduling() -> None:
    """Check that gloo's thread has the policy SCHED_BATCH, so that it does not interrupt a rank that sends."""
    tasks = [task for task in Path("/proc/self/task").iterdir() if "gloo_tcp_loop" in task.joinpath("comm").read_text()]
    assert [os.sched_getscheduler(int(task.name)) for task in tasks] == [os.SCHED_BATCH]


def memory_maps() -> str:
    return Path("/proc/self/maps").read_text()


def lose_last(group: Group, scenario: str) -> None:
    """Kill or stop the last rank in the middle of its work: the others must raise RankLost instead of waiting."""
    last = group.size - 1
    subgroup = group.split(range(1, group.size), [SHARDS] * last)
    channels = [group.channel(last, target, SPECS, 2, "lost") for target in range(last)]
    for k in range(1000):
        if k == 50 and group.rank == last and scenario != "partition":
            os.kill(os.getpid(), signal.SIGSTOP if scenario == "late" else signal.SIGKILL)
        if scenario == "reduce":
            group.reduce(torch.ones(SHARDS, 100), "lost")
        elif scenario == "background":
            group.begin_reduce(torch.ones(SHARDS, 100), "lost").result()
        elif scenario == "slices":
            group.reduce(torch.ones(SHARDS, 30_000), "lost")
        elif scenario == "gather":
            group.gather(torch.ones(SHARDS, 30_000), "lost")
        elif scenario == "barrier":
            group.barrier("lost")
        elif scenario == "partition":  # the test cuts the network between the hosts
            group.reduce(torch.ones(SHARDS, 100), "lost")
            if k == 50:
                print("running", flush=True)
            time.sleep(0.01)
        elif scenario == "late":  # rank 0 gives up first, and rank 1 must not report rank 0 as lost
            if k == 50 and group.rank:
                time.sleep(1)
            group.reduce(torch.ones(SHARDS, 100), "lost")
        elif (
            scenario == "subgroup"
        ):  # without rank 0, which notices when it synchronizes with the others: they have ended by then
            if group.rank:
                subgroup.reduce(torch.ones(SHARDS, 100), "lost")
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


def join(kind: str, rank: int, size: int, address: str, descriptor: int, timeout: float) -> Group:
    """Create a group of a kind: `shared`, `network`, `nccl`, `upgraded` from the network to shared memory, or of several hosts.

    With `hosts` rank 0 only pretends to be on another host, and with `chain` two ranks each are on a host, and rows are added along the
    chain of hosts; with `machines` the last rank is in another network namespace.
    """
    if kind == "shared":
        group: Group = SharedMemoryGroup(descriptor, rank, size, timeout)
        assert "/memfd:lockstep" in memory_maps()
        assert "/dev/shm" not in memory_maps()
        return group
    connected = NetworkGroup("nccl" if kind == "nccl" else "gloo", rank, size, timeout, address, SECRET)
    if kind in ("network", "nccl"):
        return connected
    if kind == "hosts":
        neighbors.host_id = lambda: min(rank, 1)
    elif kind == "chain":
        neighbors.host_id = lambda: rank // 2
        host_chain.is_chain_faster = lambda sizes, rows, row_bytes: True
        host_chain.PIECE = 1 << 12
    group = upgrade_to_shared_memory(connected, timeout)
    assert isinstance(group, SharedMemoryGroup) == (kind == "upgraded")
    is_alone = (kind in ALONE and rank == ALONE[kind] % size) or (kind == "chain" and size % 2 and rank == size - 1)
    assert ("/memfd:lockstep" in memory_maps()) != bool(is_alone)
    return group


def check_all(group: Group, kind: str) -> None:
    """Run all checks in which no rank is lost."""
    check_operations(group)
    check_subgroups(group)
    check_channels(group)
    check_order(group)
    check_finished_count(group)
    check_many(group, 2000 if kind == "shared" else 100)
    assert min(group.timings()) > 0
    assert group.timings() == (0.0, 0.0)
    if isinstance(group, NetworkGroup):
        check_padding(group)
        check_scheduling()
    if kind in ALONE:
        check_hosts(group, ALONE[kind] % group.size)
    assert check_end(group) == (kind != "shared")


def main(kind: str, scenario: str, rank: int, size: int, address: str, descriptor: int) -> None:
    torch.set_num_threads(1)
    shared.ARENA = SMALL
    reduction.MEMORY_ROWS, reduction.MEMORY_ROW_BYTES, reduction.NETWORK_BYTES = 3, 800, SMALL
    if scenario == "secret" and rank == size - 1:
        global SECRET
        SECRET = b"another secret.."
    group = join(kind, rank, size, address, descriptor, LIMITS.get(scenario, TIMEOUT))
    if scenario == "work":
        check_all(group, kind)
    elif scenario == "devices":
        check_devices(group)
    else:
        lose_last(group, scenario)


if __name__ == "__main__":
    kind, scenario, rank, size, address, *rest = sys.argv[1:]
    code = 0
    try:
        main(kind, scenario, int(rank), int(size), address, int(rest[0]) if rest else -1)
    except RankLost as error:
        print(error)
        code = 3
    sys.stdout.flush()
    # as `lockstep` does: threads of Gloo sometimes abort a process in which the interpreter is finalized
    os._exit(code)
