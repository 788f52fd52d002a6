"""Group of ranks on any hosts, through torch.distributed."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from math import prod
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.group.authentication import authenticate_peers
from lockstep.group.channel import Channel, LocalChannel, Spec
from lockstep.group.finished_count import FinishedCount, StoredFinishedCount
from lockstep.group.group import Clock, Group, PendingSum, ordered_sum
from lockstep.group.host import Host
from lockstep.group.host_chain import HostChain, split_by_host
from lockstep.group.neighbors import find_neighbors
from lockstep.group.point_to_point import NetworkChannel, PointToPoint
from lockstep.group.reduction import BACKGROUND_BYTES, in_slices
from lockstep.group.shared import SharedMemoryGroup, make_host_subgroup
from lockstep.group.solo import Solo
from lockstep.processes.host_name import host_name

__all__ = ["NetworkGroup", "upgrade_to_shared_memory"]

_NAME_BYTES = 64
"""Maximum size of a host's name in messages."""


class NetworkGroup(Group):
    """Ranks that send their rows to each other.

    Only `reduce`, `_move`, `_gather_bytes` and `_synchronize` depend on the transport: a subclass with another one overrides these.
    """

    host: Host | None = None
    """The memory that this rank shares with others of its host, if the world is on several hosts. Channels between them use it."""
    neighbors: Sequence[Sequence[int]] = ()
    """The ranks of each host that share memory; the same on every rank."""

    def __init__(
        self,
        backend: str,
        rank: int,
        size: int,
        timeout: float,
        init_method: str = "env://",
        secret: bytes | None = None,
    ) -> None:
        """Connect to the other ranks.

        If torch.distributed is already initialized in this process, the group uses it, leaves it as it is after `close`, and
        expects a backend for the CPU in it.

        `backend` is `gloo`, `mpi`, or `nccl`; NCCL is used for tensors on CUDA devices, and gloo for all others. `timeout` is in
        seconds, for the rendezvous and for every wait. `init_method` is the address of the rendezvous, as in torch.distributed.
        `secret` is the secret that every rank must have; None: ranks are not authenticated.
        Raises RankLost if not all ranks connect in time, or if one does not have the secret.
        """
        p2p = PointToPoint(backend, rank, size, timeout, init_method, secret)
        if secret is not None and backend != "mpi":  # MPI starts the ranks itself
            authenticate_peers(p2p, secret)
        self._join(p2p, range(size), (), Clock())
        self.barrier("start")
        self._p2p.hosts = self._host_names()

    def _join(self, p2p: PointToPoint, members: Sequence[int], counts: Sequence[int], clock: Clock) -> None:
        self.rank = members.index(p2p.rank)
        self.size = len(members)
        self.clock = clock
        self.counts = tuple(counts)
        self._p2p = p2p
        self._members = members
        self._peers = [(index, peer) for index, peer in enumerate(members) if peer != p2p.rank]
        self._tag = p2p.reserve_tags(2)
        self._ready_out = torch.zeros(1, dtype=torch.uint8)
        self._ready_in = torch.zeros(len(members), 1, dtype=torch.uint8)
        self._nccl_group: dist.ProcessGroup | None = None
        self._owned: list[Group | Channel] = []
        self._chain: HostChain | None = None

    def _host_names(self) -> list[str]:
        name = host_name().encode()[:_NAME_BYTES]
        row = torch.zeros(1, _NAME_BYTES, dtype=torch.uint8)
        row[0, : len(name)] = torch.frombuffer(bytearray(name), dtype=torch.uint8)
        return [bytes(name).rstrip(b"\0").decode(errors="replace") for name in self.gather(row, "start").tolist()]

    def gather(self, own_rows: Tensor, phase: str) -> Tensor:
        """See `Group.gather`."""
        counts = self.row_counts(len(own_rows))
        rows = own_rows.reshape(len(own_rows), prod(own_rows.shape[1:]))
        if own_rows.is_cuda and self._p2p.nccl:
            all_rows = self._move_on_devices(rows, counts, phase)
        else:
            all_rows = self._move(rows.cpu(), counts, phase).to(own_rows.device)
        return all_rows.view(sum(counts), *own_rows.shape[1:])

    def _move(self, rows: Tensor, counts: Sequence[int], phase: str) -> Tensor:
        """Gather rows on the CPU: `[counts[rank], columns]` on each rank -> `[sum(counts), columns]` on every rank.

        Raises RankLost if a rank does not take part in time.
        """
        start = perf_counter()
        all_rows = rows.new_empty(sum(counts), rows.shape[1])
        shares = all_rows.split(list(counts))
        own_share = shares[self.rank].copy_(rows)
        self.clock.transferred += perf_counter() - start
        self._exchange([own_share] * self.size, shares, phase)
        return all_rows

    def reduce(self, own_rows: Tensor, phase: str) -> Tensor:
        """See `Group.reduce`. Large rows on the CPU are added in slices or, between hosts with several ranks, along a chain."""
        counts = self.row_counts(len(own_rows))
        if own_rows.is_cuda and self._p2p.nccl:
            return super().reduce(own_rows, phase)
        if self._chain is not None and self._chain.is_faster(sum(counts), own_rows[0].nbytes):
            return self._chain.add(own_rows.cpu(), counts, phase).to(own_rows.device)
        if not in_slices(sum(counts), own_rows[0].nbytes):
            return super().reduce(own_rows, phase)
        return self._add_slices(own_rows.cpu(), counts, phase).to(own_rows.device)

    def adds_in_background(self, row_bytes: int) -> bool:
        """See `Group.adds_in_background`."""
        return not self._p2p.nccl and row_bytes >= BACKGROUND_BYTES

    def begin_reduce(self, own_rows: Tensor, phase: str) -> PendingSum:
        """See `Group.begin_reduce`."""
        sleeping = nullcontext() if self._chain is None else self._chain.sleeping()
        return PendingSum(partial(self.reduce, own_rows, phase), self.clock, sleeping)

    def _add_slices(self, rows: Tensor, counts: Sequence[int], phase: str) -> Tensor:
        """Add rows as `reduce` does: each rank adds one slice of the columns of all rows, and sends the sums to all ranks.

        For R rows of C columns in all, a rank receives about (R + size) × C / size numbers, and R × C if it gathers the rows.
        """
        start = perf_counter()
        total = rows.new_empty(rows.shape[1])
        slices = total.tensor_split(self.size)
        own_slice = slices[self.rank]
        outgoing = [columns.contiguous() for columns in rows.tensor_split(self.size, dim=1)]
        all_rows = rows.new_empty(sum(counts), len(own_slice))
        shares = all_rows.split(list(counts))
        shares[self.rank].copy_(outgoing[self.rank])
        self.clock.transferred += perf_counter() - start
        self._exchange(outgoing, shares, phase)
        start = perf_counter()
        own_slice.copy_(ordered_sum(all_rows))
        self.clock.transferred += perf_counter() - start
        self._exchange([own_slice] * self.size, slices, phase)
        return total

    def _exchange(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor], phase: str) -> None:
        """Send `outgoing[i]` to member i and fill `incoming[i]` with its message. The tensors are contiguous and on the CPU.

        A rank sends a message of one byte before its tensors: the time until this message arrives counts as waiting, the
        time after it as moving. Raises RankLost if a rank does not take part in time.
        """
        start = perf_counter()
        p2p, tag = self._p2p, self._tag
        receives = []
        for index, peer in self._peers:
            ready = p2p.receive(self._ready_in[index], peer, tag, phase)
            message = incoming[index]
            body = p2p.receive(_as_bytes(message), peer, tag + 1, phase) if message.numel() else None
            receives.append((peer, ready, body))
        sends = [(peer, p2p.send(self._ready_out, peer, tag, phase)) for _, peer in self._peers]
        for index, peer in self._peers:
            if outgoing[index].numel():
                sends.append((peer, p2p.send(_as_bytes(outgoing[index]), peer, tag + 1, phase)))
        started = perf_counter()
        for peer, ready, _ in receives:
            p2p.wait(ready, peer, phase)
        all_ready = perf_counter()
        for peer, _, body in receives:
            if body is not None:
                p2p.wait(body, peer, phase)
        for peer, work in sends:
            p2p.wait(work, peer, phase)
        self.clock.waited += all_ready - started
        self.clock.transferred += started - start + perf_counter() - all_ready

    def _synchronize(self, phase: str, timeout_factor: float = 1) -> None:
        """Wait until every rank has called `_synchronize`. Raises RankLost if a rank does not in time."""
        start = perf_counter()
        p2p, tag = self._p2p, self._tag
        works = [(peer, p2p.receive(self._ready_in[index], peer, tag, phase)) for index, peer in self._peers]
        works += [(peer, p2p.send(self._ready_out, peer, tag, phase)) for _, peer in self._peers]
        for peer, work in works:
            p2p.wait(work, peer, phase, timeout_factor)
        self.clock.waited += perf_counter() - start

    def _move_on_devices(self, rows: Tensor, counts: Sequence[int], phase: str) -> Tensor:
        """Gather rows from device to device, as `_move` does on the CPU.

        NCCL needs the same number of rows from every rank, and can't report which rank is lost: so the rows are padded,
        and the ranks synchronize first.
        """
        self._synchronize(phase)
        start = perf_counter()
        most = max(counts)
        padded = rows.new_zeros(most, rows.shape[1])
        padded[: len(rows)] = rows
        all_rows = padded.new_empty(self.size, *padded.shape)
        self._gather_bytes(all_rows.view(torch.uint8), padded.view(torch.uint8), phase)
        if min(counts) < most:
            all_rows = torch.cat([share[:count] for share, count in zip(all_rows, counts, strict=True)])
        else:
            all_rows = all_rows.flatten(0, 1)
        self.clock.transferred += perf_counter() - start
        return all_rows

    def _gather_bytes(self, all_rows: Tensor, rows: Tensor, phase: str) -> None:
        """Gather the bytes `[rows, bytes]` of every rank in `all_rows`, `[size, rows, bytes]`."""
        if all_rows.numel():
            dist.all_gather_single(all_rows.flatten(0, 1), rows, self._nccl_group)

    def barrier(self, phase: str, timeout_factor: float = 1) -> None:
        """See `Group.barrier`."""
        self._synchronize(phase, timeout_factor)

    def split(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        """See `Group.split`. Members that share memory use it."""
        if any(set(members) <= set(ranks) for ranks in self.neighbors):
            subgroup = self._share_memory(members, counts)
        else:
            subgroup = self._make_subgroup(members, counts)
        self._owned.append(subgroup)
        return subgroup

    def _make_subgroup(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        """Create the group of ranks that do not share memory, see `Group.split`."""
        p2p = self._p2p
        if len(members) == 1:
            return Solo(counts if self.rank in members else (), self.clock)
        nccl_group = dist.new_group(list(members), backend="nccl") if p2p.nccl else None
        chain = self._make_chain(members, counts)
        if self.rank in members:
            assert nccl_group is None or isinstance(nccl_group, dist.ProcessGroup)
            return _Subgroup(p2p, members, counts, self.clock, nccl_group, chain)
        p2p.reserve_tags(2)
        return Solo((), self.clock)

    def _make_chain(self, members: Sequence[int], counts: Sequence[int]) -> HostChain | None:
        """Create the chain of the hosts of `members`, which contribute `counts` rows (empty: all the same number).

        Return None if no host has several members, and on ranks outside the group. Every rank calls it.
        """
        hosts = split_by_host(members, self.neighbors)
        if len(hosts) == len(members):
            return None
        tag, count_of, chain = self._p2p.reserve_tags(2), dict(zip(members, counts, strict=False)), None
        for ranks in hosts:
            rows = self._share_memory(ranks, [count_of[rank] for rank in ranks] if counts else ())
            sums = self._share_memory(ranks, ())
            if self.rank in ranks:
                chain = HostChain(self._p2p, hosts, rows, sums, tag, self.clock, self.host)
        return chain

    def _share_memory(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        """Create a group of ranks of one host, which share memory if there are several, see `Group.split`."""
        if self.host is None or not set(members) <= set(self.host.ranks):
            return Solo(counts if self.rank in members else (), self.clock)
        return make_host_subgroup(self.host, members, counts, self.clock)

    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> Channel | None:
        """See `Group.channel`. A channel between ranks that share memory uses it."""
        if source == target:
            return LocalChannel(specs, depth) if self.rank == source else None
        channel: Channel | None = None
        if any({source, target} <= set(ranks) for ranks in self.neighbors):
            if self.host is not None and {source, target} <= set(self.host.ranks):
                channel = self.host.channel(source, target, specs, depth, phase, self.clock)
        else:
            tag = self._p2p.reserve_tags(2)
            if self.rank in (source, target):
                channel = NetworkChannel(self._p2p, source, target, specs, depth, phase, self.clock, tag)
        if channel is not None:
            self._owned.append(channel)
        return channel

    def finished_count(self, shards: int) -> FinishedCount:
        """See `Group.finished_count`."""
        if not self._p2p.has_store:
            raise ValueError(
                "plan.preempt: MPI, or the program that connected the ranks, gives them no store in which they count finished rollouts; use "
                "runtime.backend gloo or auto"
            )
        return StoredFinishedCount(shards, self._p2p.add)

    def set_neighbors(self, neighbors: Sequence[Sequence[int]], memory: int, timeout: float) -> None:
        """Use shared memory between the neighbors from now on, the ranks of each host that `find_neighbors` returned.

        `memory` is the descriptor of this rank's memory, or -1. `timeout` is in seconds, per wait.
        """
        self.neighbors = neighbors
        if memory >= 0:
            own_host = next(ranks for ranks in neighbors if self.rank in ranks)
            self.host = Host(memory, self.rank, own_host, timeout)
            self.host.make_error = self._p2p.make_error
            self.host.avoids_long_yields = True  # gloo's thread needs the core
        self._chain = self._make_chain(range(self.size), ())
        self.barrier("start")  # afterwards the memory has the process id of every rank

    def set_core_count(self, count: int) -> None:
        """See `Group.set_core_count`."""
        if self.host is not None:
            self.host.set_core_count(count)

    def avoid_long_yields(self) -> None:
        """See `Group.avoid_long_yields`."""
        if self.host is not None:
            self.host.avoids_long_yields = True

    def report_failure(self) -> None:
        """See `PointToPoint.report_failure`."""
        self._p2p.report_failure()

    def close(self) -> None:
        """See `Group.close`."""
        for owned in self._owned:
            owned.close()
        if self._chain is not None:
            self._chain.close()
        if self.host is not None:
            self.host.close()
        self._p2p.close()


def upgrade_to_shared_memory(group: NetworkGroup, timeout: float) -> Group:
    """Return the group of the same ranks that uses shared memory where possible. `timeout` is in seconds, per wait.

    If all ranks are on one host and can open each other's memory, the result is a SharedMemoryGroup. Otherwise it is
    `group`, which from now on uses shared memory for channels and subgroups of ranks that share it. In both cases
    torch.distributed stays initialized until the group is closed.
    """
    neighbors, memory = find_neighbors(group)
    if neighbors and len(neighbors[0]) == group.size:
        shared = SharedMemoryGroup(memory, group.rank, group.size, timeout)
        shared.adopt(group)
        return shared
    group.set_neighbors(neighbors, memory, timeout)
    return group


class _Subgroup(NetworkGroup):
    """Group of some of the world's ranks."""

    def __init__(
        self,
        p2p: PointToPoint,
        members: Sequence[int],
        counts: Sequence[int],
        clock: Clock,
        nccl_group: dist.ProcessGroup | None,
        chain: HostChain | None,
    ) -> None:
        self._join(p2p, tuple(members), counts, clock)
        self._nccl_group, self._chain = nccl_group, chain

    def split(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        raise AssertionError("only the group of all ranks can be split")

    def channel(self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str) -> Channel | None:
        raise AssertionError("only the group of all ranks has channels")

    def close(self) -> None:
        """Release the memory of the chain. The group of all ranks owns the connections."""
        if self._chain is not None:
            self._chain.close()


def _as_bytes(rows: Tensor) -> Tensor:
    """View a tensor as bytes, because gloo does not support all dtypes."""
    return rows.view(-1).view(torch.uint8)
