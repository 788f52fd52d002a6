"""Reduction along a chain of hosts: over the network, a host receives and sends one row in each direction, whatever the number of its ranks.

The ranks of a host share their rows in memory. The first host adds its rows and sends the sums to the second one, which adds its rows to them,
and so on; the last host has the sums of all rows, and they are sent back along the chain. Every rank owns consecutive shards, and so does every
host: the additions are those of one rank, in the same order.

The columns are divided into blocks: the k-th ranks of all hosts add block k. There are as many blocks as the host with the fewest ranks has ranks.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby, islice
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.group.group import Clock, Group, ordered_sum
from lockstep.group.host import Host
from lockstep.group.point_to_point import PointToPoint
from lockstep.group.reduction import PIECE, is_chain_faster
from lockstep.group.shared import max_columns

__all__ = ["HostChain", "split_by_host"]


def split_by_host(members: Sequence[int], neighbors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the members on each host, in order. `neighbors` are the ranks of each host that share memory.

    A host appears several times if others are between its members.
    """
    host_of = {rank: min(ranks) for ranks in neighbors for rank in ranks}
    return [list(ranks) for _, ranks in groupby(members, lambda rank: host_of.get(rank, rank))]


class HostChain:
    """The part of one rank in reductions along a chain of hosts."""

    def __init__(
        self,
        p2p: PointToPoint,
        hosts: Sequence[Sequence[int]],
        rows: Group,
        sums: Group,
        tag: int,
        clock: Clock,
        host: Host | None = None,
    ) -> None:
        """Create the chain of `hosts`, the ranks of each host.

        `rows` and `sums` are groups of the ranks of this host: `rows` with their row counts, `sums` with one row for each. The chain uses the
        tags `tag` and `tag + 1`. `host` is the memory of this host's ranks; None: there is one rank.
        """
        self._host = host
        index = next(index for index, ranks in enumerate(hosts) if p2p.rank in ranks)
        self._p2p, self._rows, self._sums, self._tag, self._clock = p2p, rows, sums, tag, clock
        self._sizes = [len(ranks) for ranks in hosts]
        self._block_count, self._block = min(self._sizes), hosts[index].index(p2p.rank)
        has_block = self._block < self._block_count
        self._before = hosts[index - 1][self._block] if has_block and index > 0 else None
        self._after = hosts[index + 1][self._block] if has_block and index + 1 < len(hosts) else None

    def is_faster(self, rows: int, row_bytes: int) -> bool:
        """Return True if the chain takes less time than other ways to add that number of rows."""
        return is_chain_faster(self._sizes, rows, row_bytes)

    def sleeping(self) -> AbstractContextManager[None]:
        """See `Host.sleeping`."""
        return nullcontext() if self._host is None else self._host.sleeping()

    def add(self, own_rows: Tensor, counts: Sequence[int], phase: str) -> Tensor:
        """Add the rows of all ranks in shard order, see `Group.reduce`. `counts` are the row counts of all ranks.

        The rows are on the CPU. Raises RankLost if a rank does not take part in time.
        """
        total, of_ranks = own_rows.new_empty(own_rows.shape[1]), iter(counts)
        most = max(sum(islice(of_ranks, size)) for size in self._sizes)
        width = max_columns(most, own_rows.dtype)
        for begin in range(0, len(total), width):
            columns = slice(begin, begin + width)
            self._add_columns(own_rows[:, columns], total[columns], phase)
        return total

    def _add_columns(self, own_rows: Tensor, total: Tensor, phase: str) -> None:
        rows = self._rows.share(own_rows, phase)
        width = -(-len(total) // self._block_count)
        sums = own_rows.new_zeros(1, width)
        block = slice(self._block * width, min((self._block + 1) * width, len(total)))
        if block.start < block.stop:
            start, waited = perf_counter(), self._clock.waited
            self._add_block(rows[:, block], sums[0, : block.stop - block.start], phase)
            self._clock.transferred += perf_counter() - start - (self._clock.waited - waited)
        blocks = self._sums.share(sums, phase)[: self._block_count]
        total.copy_(blocks.reshape(-1)[: len(total)])

    def _add_block(self, rows: Tensor, sums: Tensor, phase: str) -> None:
        """Fill `sums` `[columns]` with the sums over all hosts, given the `rows` `[rows, columns]` of this host."""
        columns, sends = max(1, PIECE // rows.itemsize), []
        pieces = sums.split(columns)
        earlier = self._receive(sums, columns, self._before, self._tag, phase)
        final = self._receive(sums, columns, self._after, self._tag + 1, phase)
        for k, own_rows in enumerate(rows.split(columns, dim=1)):
            prefix = [] if self._before is None else [self._wait(earlier, k, self._before, phase)]
            pieces[k].copy_(ordered_sum([*prefix, *own_rows]))
            sends += self._send(pieces[k], self._after, self._tag, phase)
        for k, piece in enumerate(pieces):
            total = piece if self._after is None else self._wait(final, k, self._after, phase)
            sends += self._send(total, self._before, self._tag + 1, phase)
        for peer, work in sends:
            self._p2p.wait(work, peer, phase)
        for piece, (total, _) in zip(pieces, final, strict=False):  # no message may change before it has been sent
            piece.copy_(total)

    def _receive(
        self, sums: Tensor, columns: int, peer: int | None, tag: int, phase: str
    ) -> list[tuple[Tensor, dist.Work]]:
        """Start to receive a tensor like `sums`, in pieces of `columns` columns. Return each piece and its work; nothing without a `peer`."""
        pieces = [] if peer is None else torch.empty_like(sums).split(columns)
        return [
            (piece, self._p2p.receive(piece.view(torch.uint8), peer, tag, phase))
            for piece in pieces
            if peer is not None
        ]

    def _wait(self, received: Sequence[tuple[Tensor, dist.Work]], k: int, peer: int, phase: str) -> Tensor:
        """Wait for piece `k`. The time until the first piece arrives counts as waiting, the rest as moving."""
        start = perf_counter()
        piece, work = received[k]
        self._p2p.wait(work, peer, phase)
        if k == 0:
            self._clock.waited += perf_counter() - start
        return piece

    def _send(self, piece: Tensor, peer: int | None, tag: int, phase: str) -> list[tuple[int, dist.Work]]:
        return [] if peer is None else [(peer, self._p2p.send(piece.view(torch.uint8), peer, tag, phase))]

    def close(self) -> None:
        """Release the shared memory."""
        self._rows.close()
        self._sums.close()
