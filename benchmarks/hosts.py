"""Measure a reduction between two hosts with several ranks each: time, and bytes that a host receives.

    python benchmarks/hosts.py                # as root, with iproute2; about 3 minutes; writes benchmarks/hosts.json

The hosts are two network namespaces of this machine, connected by a virtual Ethernet pair whose rate is limited. Ranks of a host share memory, and every
rank contributes one row of float32. The ways are `gather` (every rank gets all rows), `slices` (every rank adds one slice of the columns) and `chain` (the
sums of a host's rows are sent to the next host, see lockstep.group.host_chain), whatever lockstep would choose; the table marks its choice.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import statistics
import sys
from pathlib import Path
from time import perf_counter

import torch
from namespaces import ADDRESSES, CABLE
from on_two_hosts import main

from lockstep.group import reduction
from lockstep.group.host_chain import HostChain
from lockstep.group.network import NetworkGroup, upgrade_to_shared_memory
from lockstep.group.reduction import is_chain_faster

PER_HOST = (1, 2, 4, 8)
SIZES = (10_000, 100_000, 1_000_000)
WAYS = ("gather", "slices", "chain")
SLICED = reduction.NETWORK_BYTES
PORT = 29541


def received_bytes() -> int:
    """Return the number of bytes that this host has received over the cable."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith(CABLE))
    return int(line.partition(":")[2].split()[0])


def choose(way: str) -> None:
    """Let groups add rows in one way, whatever their size."""
    reduction.NETWORK_BYTES = 0 if way == "slices" else sys.maxsize
    HostChain.is_faster = lambda self, rows, row_bytes: way == "chain"  # type: ignore[method-assign]


def measure(group: NetworkGroup, way: str, size: int, repeats: int) -> tuple[float, float]:
    """Return the milliseconds of a reduction, and the bytes that the host of this rank receives."""
    choose(way)
    rows = torch.full((1, size), group.rank + 1.0)
    total = group.reduce(rows, "sum")
    assert total[0] == total[-1] == group.size * (group.size + 1) / 2
    group.barrier("begin")
    before, start = received_bytes(), perf_counter()
    for _ in range(repeats):
        group.reduce(rows, "sum")
    seconds = perf_counter() - start
    group.barrier("end")
    return 1e3 * seconds / repeats, (received_bytes() - before) / repeats


def run_rank(rank: int, per_host: int, rounds: int) -> None:
    """Run all measurements of one rank. Rank 0 prints them as JSON."""
    torch.set_num_threads(1)
    connected = NetworkGroup("gloo", rank, 2 * per_host, 60, f"tcp://{ADDRESSES[0]}:{PORT}")
    group = upgrade_to_shared_memory(connected, 60)
    assert isinstance(group, NetworkGroup)
    records = []
    ways = WAYS if per_host > 1 else WAYS[:2]
    for size in SIZES:
        repeats = max(3, min(20, 1_000_000 // size))
        measured: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for k in range(rounds):
            for way in ways if k % 2 else ways[::-1]:
                measured[way].append(measure(group, way, size, repeats))
        by_chain = is_chain_faster([per_host] * 2, 2 * per_host, 4 * size)
        by_slices = not by_chain and per_host > 1 and 8 * per_host * size >= SLICED
        chosen = "chain" if by_chain else "slices" if by_slices else "gather"
        for way, pairs in measured.items():
            milliseconds, traffic = zip(*pairs, strict=True)
            records.append(
                {
                    "ranks per host": per_host,
                    "floats": size,
                    "way": way,
                    "chosen": way == chosen,
                    "milliseconds": [round(value, 2) for value in sorted(milliseconds)],
                    "bytes": round(statistics.median(traffic)),
                }
            )
    if rank == 0:
        print(json.dumps(records))
    group.barrier("end")
    group.close()


if __name__ == "__main__":
    main(Path(__file__), __doc__, run_rank, PER_HOST, rounds=5)
