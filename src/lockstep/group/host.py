"""Ranks of one host: the memory that they share, how one waits for another, and channels between them."""

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import NoReturn

import torch

from lockstep.group.channel import PATIENCE, Channel, Spec, footprint, laid_out
from lockstep.group.group import Clock, RankLost
from lockstep.group.memory import LINE, Memory, usable_cores

__all__ = ["Host", "SharedMemoryChannel"]

_SPINS = 100
_YIELDS = 1000
_NAPS = (5e-5, 1e-3)
"""Seconds of the shortest and the longest sleep between two looks."""
_CHECK_EVERY = 0.2


class Host:
    """The ranks of one host. What one tells another is a number in shared memory that only rises.

    The memory's first region has a cache line for every rank: its process id, and one more than the rank that it found lost.
    """

    blame: Callable[[int, str, str], RankLost] | None = None
    """The error for a lost rank, its phase and the reason, where there are other hosts too."""

    def __init__(self, file: int, rank: int, ranks: Sequence[int], timeout: float) -> None:
        """`file` is a descriptor of shared memory, `ranks` are the world's ranks that share it, `timeout` is in seconds, per wait."""
        self.rank = rank
        self.ranks = tuple(ranks)
        self.memory = Memory(file)
        self._timeout = timeout
        self._lines = memoryview(self.memory.region(len(ranks) * LINE)).cast("q")
        self._place = {peer: place * LINE // 8 for place, peer in enumerate(ranks)}
        self._lines[self._place[rank]] = os.getpid()
        self._lock = Lock()
        self.have_cores(usable_cores())

    def have_cores(self, count: int) -> None:
        """Says how many cores the ranks have together. The first guess is this rank's; a launcher may have bound each to its own."""
        # Spinning spares some microseconds, but steals the core from a peer that has none of its own. So does more spinning
        # where other programs run: both ranks may be on one core then (75 µs for a reduction with 2000, 20 with 100).
        self._spins = _SPINS if len(self.ranks) <= count else 0

    def fence(self) -> None:
        """Keeps a counter from overtaking what it announces, on processors that may do so (x86 does not).

        Two round trips of a lock are a full memory barrier: nothing passes the first release downwards, nor the second
        acquisition upwards, nor these each other.
        """
        for _ in range(2):
            with self._lock:
                pass

    def wait(self, counters: memoryview, place: int, target: int, peer: int, phase: str, patience: float = 1) -> None:
        """Returns when `counters[place]` is `target` or more. `peer` is the rank of the world that raises it.

        Raises RankLost when it has ended, or does not come within `patience` times the timeout.
        """
        for _ in range(self._spins):
            if counters[place] >= target:
                return
        for _ in range(_YIELDS):
            if counters[place] >= target:
                return
            os.sched_yield()
        begun = checked = now = time.monotonic()
        while counters[place] < target:
            # Who has waited for long may wait 2 % longer: a rank that sleeps leaves the core to those that work.
            time.sleep(min(max((now - begun) / 50, _NAPS[0]), _NAPS[1]))
            now = time.monotonic()
            if now - checked > _CHECK_EVERY:
                checked = now
                if self._ended(peer) and counters[place] < target:
                    self._lose(peer, phase)
                if now - begun > patience * self._timeout:
                    self._lose(
                        peer, phase, f"it did not arrive within {patience * self._timeout:g} s (see runtime.timeout)"
                    )

    def _lose(self, peer: int, phase: str, why: str = "its process has ended") -> NoReturn:
        """Raises RankLost, for the rank that `peer` found lost if that is why it has ended."""
        found, lost = self._lines[self._place[peer] + 1] - 1, peer
        if found >= 0 and self._ended(peer):
            if not self._ended(found):
                why = f"rank {peer} has waited for it in vain"
            lost = found
        self._lines[self._place[self.rank] + 1] = lost + 1
        if self.blame is not None:
            raise self.blame(lost, phase, why)
        process = self._lines[self._place[lost]]  # 0: it never came
        where = f"(process {process} on host {socket.gethostname()})" if process else f"on host {socket.gethostname()}"
        raise RankLost(f"rank {lost} {where}", phase, why)

    def _ended(self, peer: int) -> bool:
        process = self._lines[self._place[peer]]
        return process > 0 and not _alive(process)

    def channel(
        self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str, clock: Clock
    ) -> "SharedMemoryChannel | None":
        """See `Group.channel`. Every rank of the host calls it."""
        if self.rank in (source, target):
            return SharedMemoryChannel(self, source, specs, depth, phase, clock)
        self.memory.skip(LINE + depth * footprint(specs))
        return None

    def close(self) -> None:
        """Lets go of the memory."""
        self._lines.release()
        self.memory.close()


class SharedMemoryChannel(Channel):
    """Written in place and read in place. The region begins with a counter: one more than the last message's number."""

    def __init__(self, host: Host, source: int, specs: Sequence[Spec], depth: int, phase: str, clock: Clock) -> None:
        region = host.memory.region(LINE + depth * footprint(specs))
        self._slots = laid_out(torch.frombuffer(region, dtype=torch.uint8)[LINE:], specs, depth)
        self._sent = memoryview(region)[:LINE].cast("q")
        self._host = host
        self._source = source
        self._phase = phase
        self._clock = clock

    def send(self, number: int) -> None:
        """See `Channel.send`."""
        self._host.fence()
        self._sent[0] = number + 1

    def receive(self, number: int) -> None:
        """See `Channel.receive`."""
        begun = perf_counter()
        self._host.wait(self._sent, 0, number + 1, self._source, self._phase, PATIENCE)
        self._host.fence()
        self._clock.waited += perf_counter() - begun

    def close(self) -> None:
        """See `Channel.close`; the slots stay readable."""
        self._sent.release()


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"  # a zombie has ended; only its parent has not looked yet
