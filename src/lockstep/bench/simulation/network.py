"""Cost of communication between ranks, in seconds and bytes: reductions, agents and rollouts.

A message costs its latency α, an overhead of the processor per message, and a time per byte, of the processor or of the network, whichever is
longer. This is the LogGP model (Alexandrov et al. 1995, "LogGP: Incorporating long messages into the LogP model"); with few messages it is
the α–β model. The constants were measured on 2 cores of AMD EPYC (benchmarks/traffic.json and benchmarks/reduction.json).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lockstep.group.reduction import chain_bytes, in_slices, in_slices_in_memory, is_chain_faster

__all__ = [
    "NETWORKS",
    "Cluster",
    "Network",
    "Rows",
    "adds_slices",
    "message_seconds",
    "received_bytes",
    "reduction_seconds",
]

_OVERHEAD = 60e-6
"""Processor seconds to send and to receive one message through gloo."""
_SECONDS_PER_BYTE = 0.75e-9
"""Processor seconds to send and to receive a byte through gloo."""
_MEMORY = 15e9
"""Bytes per second that a core writes, or reads while it adds rows, in shared memory."""
_BARRIER = 4e-6
"""Seconds until all ranks of a host have entered a reduction in shared memory, with a core for each rank."""
_SWITCH = 200e-6
"""Seconds per rank of a core that a reduction in shared memory takes if ranks share cores: the scheduler lets them take turns. In
benchmarks/scaling.json, 4 ranks on 2 cores take 23 ms longer than 2 ranks for the same 67 reductions."""
_MESSAGES = 2
"""Messages per tensor between two ranks: an announcement of some bytes, and the content."""


class Network(NamedTuple):
    """Network between hosts."""

    latency: float
    """Seconds from the start of sending to the arrival of an empty message, α."""
    bandwidth: float
    """Bytes per second and direction of a host's network interface, 1/β; infinite for the loopback interface."""


NETWORKS = {
    "loopback": Network(50e-6, math.inf),
    "10gbe": Network(80e-6, 1.25e9),
    "25gbe": Network(80e-6, 3.125e9),
    "100gbe": Network(80e-6, 12.5e9),
}
"""Networks by name. The latency of the loopback interface is measured, that of the others is assumed: a TCP message between hosts of a rack."""


@dataclass(frozen=True)
class Cluster:
    """Hosts that are filled with ranks one after the other."""

    ranks_per_host: int
    cores_per_host: int
    network: Network
    shared_memory: bool = True
    """False if ranks of one host communicate through gloo as well (`runtime.backend: gloo`)."""

    def host(self, rank: int) -> int:
        """Return the index of the host of a rank."""
        return rank // self.ranks_per_host

    def most_per_host(self, ranks: Sequence[int]) -> int:
        """Return the largest number of these ranks on one host."""
        return max(self.sizes(ranks))

    def sizes(self, ranks: Sequence[int]) -> list[int]:
        """Return the number of these ranks on each host that has some."""
        return list(Counter(map(self.host, ranks)).values())

    def core_share(self, ranks: Sequence[int]) -> float:
        """Return the number of these ranks per core on the fullest host, at least 1: the factor by which they slow each other down."""
        return max(1.0, self.most_per_host(ranks) / self.cores_per_host)

    def in_memory(self, ranks: Sequence[int]) -> bool:
        """Return True if these ranks communicate through shared memory: they are on one host."""
        return self.shared_memory and len(set(map(self.host, ranks))) == 1


class Rows(NamedTuple):
    """Rows of a reduction or of a gather."""

    total: int
    """Rows of all ranks, S."""
    own: int
    """Rows of the rank that has the fewest, s; it receives the most bytes."""
    numbers: int
    """Numbers in a row, P."""
    itemsize: int
    """Bytes of a number."""

    @property
    def bytes(self) -> int:
        """Bytes of one row."""
        return self.numbers * self.itemsize


def adds_slices(rows: Rows, in_memory: bool) -> bool:
    """Return True if each rank adds one slice of the columns, as `SharedMemoryGroup.reduce` and `NetworkGroup.reduce` decide."""
    return (in_slices_in_memory if in_memory else in_slices)(rows.total, rows.bytes)


def received_bytes(rows: Rows, ranks: int, slices: bool) -> float:
    """Return the bytes that a rank receives in a reduction over the network. docs/scaling.md has the formulas."""
    others = rows.total - rows.own
    return rows.bytes * (others + ranks - 1) / ranks if slices else float(rows.bytes * others)


def reduction_seconds(cluster: Cluster, ranks: Sequence[int], rows: Rows, sums: bool = True) -> float:
    """Return the seconds of a reduction or, without `sums`, of a gather over `ranks`, without waiting for late ranks; 0 for one rank."""
    if len(ranks) == 1:
        return 0.0
    in_memory = cluster.in_memory(ranks)
    slices = sums and adds_slices(rows, in_memory)
    share, count = cluster.core_share(ranks), len(ranks)
    added = rows.total * rows.bytes / (count if slices else 1)
    if in_memory:
        written = rows.bytes * (rows.total / count + 1)  # the rank's own rows and the result
        barrier = _BARRIER if share == 1 else _SWITCH * share
        return (2 if slices else 1) * barrier + share * (added + written) / _MEMORY
    if sums and cluster.shared_memory and is_chain_faster(cluster.sizes(ranks), rows.total, rows.bytes):
        return _chain_seconds(cluster, ranks, rows)
    received = received_bytes(rows, count, slices)
    per_host = cluster.most_per_host(ranks)
    remote = received * (count - per_host) / (count - 1)
    messages = (2 if slices else 1) * _MESSAGES * (count - 1)
    latency = (2 if slices else 1) * cluster.network.latency
    transfer = max(share * received * _SECONDS_PER_BYTE, per_host * remote / cluster.network.bandwidth)
    return latency + share * (messages * _OVERHEAD + (added / _MEMORY if sums else 0.0)) + transfer


def _chain_seconds(cluster: Cluster, ranks: Sequence[int], rows: Rows) -> float:
    """Return the seconds of a reduction along a chain of hosts, see lockstep.group.host_chain."""
    sizes, share = cluster.sizes(ranks), cluster.core_share(ranks)
    lanes, hops = min(sizes), 2 * (len(sizes) - 1)
    barrier = _BARRIER if share == 1 else _SWITCH * share
    # own rows are written and those of the host read, a lane of each; the sums are written by lane and read by all
    moved = rows.bytes * (rows.own + rows.total / len(sizes) / lanes + 1 / lanes + 1)
    busy = 2 * rows.bytes / lanes * _SECONDS_PER_BYTE
    latency = hops * (cluster.network.latency + _OVERHEAD)
    transfer = max(share * busy, chain_bytes(sizes, rows.bytes) / cluster.network.bandwidth)
    return latency + 2 * barrier + share * (2 * _OVERHEAD + moved / _MEMORY) + transfer


def message_seconds(cluster: Cluster, source: int, target: int, size: float, sharing: int = 1) -> tuple[float, float]:
    """Return the seconds of a tensor of `size` bytes from one rank to another: those that the ranks are busy, and the latency.

    `sharing` is the number of ranks of a host that transfer at the same time.
    """
    if source == target:
        return 0.0, 0.0
    if cluster.in_memory((source, target)):
        return size / _MEMORY, _BARRIER
    wire = 0.0 if cluster.host(source) == cluster.host(target) else sharing * size / cluster.network.bandwidth
    # one rank sends and the other receives, where in a reduction every rank does both
    return _MESSAGES * _OVERHEAD / 2 + max(size * _SECONDS_PER_BYTE / 2, wire), cluster.network.latency
