"""Ranks of one host, through anonymous shared memory.

Layout of the memory (`lockstep.group.memory`):

    header   64 bytes a rank (its own cache line): how many exchanges it has entered, its process id
    arena 0  rows of the even exchanges, all ranks' one after the other
    arena 1  rows of the odd exchanges

A rank writes its rows, raises its counter and waits until every counter is as high. One wait is enough, because it writes to
an arena again only two exchanges later, and then everybody has entered the exchange between, so has read this one.
"""

import mmap
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from time import perf_counter

import torch
from torch import Tensor

from lockstep.group.group import Group, RankLost, ordered_sum
from lockstep.group.memory import ARENA, LINE, usable_cores

__all__ = ["SharedMemoryGroup"]

_SPINS = 2000
_YIELDS = 200
_CHECK_EVERY = 0.2


class SharedMemoryGroup(Group):
    """See the module's docstring."""

    def __init__(self, memory: int, rank: int, size: int, timeout: float) -> None:
        """Joins. `memory` is a file descriptor of `create_memory(size)`; `timeout` is in seconds, per exchange."""
        self.rank = rank
        self.size = size
        self._timeout = timeout
        self._map = mmap.mmap(memory, 0)
        os.close(memory)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._counters = memoryview(self._map)[: size * LINE].cast("q")
        self._entered = 0
        self._lock = Lock()
        # Spinning keeps an exchange at some microseconds, but steals the core from a peer that has none of its own.
        self._spins = _SPINS if size <= usable_cores() else 0
        self._counters[rank * 8 + 1] = os.getpid()
        self.barrier("start")

    def gather(self, parts: Tensor, phase: str) -> Tensor:
        """See `Group.gather`."""
        rows = parts.reshape(parts.shape[0], -1)
        pieces = [piece.clone() for piece in self._exchange(rows, phase)]
        return torch.cat(pieces, dim=1).reshape(-1, *parts.shape[1:])

    def reduce(self, parts: Tensor, phase: str) -> Tensor:
        """See `Group.reduce`; adds straight from the shared rows."""
        pieces = [ordered_sum(piece) for piece in self._exchange(parts, phase)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _exchange(self, rows: Tensor, phase: str) -> Iterator[Tensor]:
        """Yields `[S, n]` views of everybody's rows, in pieces that fit; each is to be used before the next is asked for."""
        count, columns = rows.shape
        width = max(1, ARENA // (self.size * count * rows.element_size()))
        for left in range(0, max(columns, 1), width):
            piece = rows[:, left : left + width]
            begun = perf_counter()
            everybody = self._arena(self.size * count, piece)
            everybody[self.rank * count : (self.rank + 1) * count].copy_(piece)
            entered = perf_counter()
            self._enter(phase)
            arrived = perf_counter()
            yield everybody
            self.waited += arrived - entered
            self.moved += entered - begun + perf_counter() - arrived

    def _arena(self, rows: int, like: Tensor) -> Tensor:
        start = self.size * LINE + (self._entered % 2) * ARENA
        length = rows * like.shape[1] * like.element_size()
        return self._bytes[start : start + length].view(like.dtype).view(rows, like.shape[1])

    def barrier(self, phase: str) -> None:
        """See `Group.barrier`."""
        begun = perf_counter()
        self._enter(phase)
        self.waited += perf_counter() - begun

    def _enter(self, phase: str) -> None:
        """Raises this rank's counter and waits until nobody's is lower."""
        self._entered += 1
        self._fence()
        self._counters[self.rank * 8] = self._entered
        for peer in range(self.size):
            if self._counters[peer * 8] < self._entered:
                self._await(peer, phase)
        self._fence()

    def _fence(self) -> None:
        """Keeps the counter from overtaking the rows, on processors that may do so (x86 does not).

        Two round trips of a lock are a full memory barrier: nothing passes the first release downwards, nor the second
        acquisition upwards, nor these each other.
        """
        for _ in range(2):
            with self._lock:
                pass

    def _await(self, peer: int, phase: str) -> None:
        counters, place, target = self._counters, peer * 8, self._entered
        for _ in range(self._spins):
            if counters[place] >= target:
                return
        for _ in range(_YIELDS):
            if counters[place] >= target:
                return
            os.sched_yield()
        begun = checked = time.monotonic()
        while counters[place] < target:
            time.sleep(5e-5)
            now = time.monotonic()
            if now - checked > _CHECK_EVERY:
                checked = now
                process = counters[place + 1]
                if process and not _alive(process):
                    raise RankLost(
                        f"rank {peer} (process {process} on host {socket.gethostname()})",
                        phase,
                        "its process has ended",
                    )
                if now - begun > self._timeout:
                    raise RankLost(
                        f"rank {peer} on host {socket.gethostname()}",
                        phase,
                        f"it did not arrive within {self._timeout:g} s",
                    )

    def close(self) -> None:
        """See `Group.close`."""
        self._counters.release()


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"  # a zombie has ended; only its parent has not looked yet
