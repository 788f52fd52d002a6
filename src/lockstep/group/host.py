"""Ranks of one host: their shared memory, how one rank waits for another, and channels between them."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import NoReturn

import torch

from lockstep.group.channel import Channel, Spec, make_slots, slot_bytes
from lockstep.group.group import Clock, RankLost
from lockstep.group.memory import CACHE_LINE, RegionAllocator
from lockstep.processes import heartbeat
from lockstep.processes.cores import usable_cores
from lockstep.processes.exit_codes import FAILED, RANK_LOST
from lockstep.processes.heartbeat import LOST, PROCESS, STOPPED_AFTER, WAITS_FOR, Heartbeat
from lockstep.processes.host_name import host_name

__all__ = ["Host", "SharedMemoryChannel"]

_SPINS = 100
_YIELDS = 1000
_LONG_YIELD = 2e-4
"""Seconds after which a call of `sched_yield` has given the core to another program for a time slice."""
_WAITS_AFTER_LONG_YIELD = 500
"""Number of waits in which a rank then sleeps instead: the kernel gives the core back to a process that wakes up at once."""
_SLEEPS = (5e-5, 1e-3)
"""Seconds of the shortest and of the longest sleep between two polls."""
_LIVENESS_INTERVAL = 0.2
"""Seconds between two checks that the awaited process is alive."""
_GRACE = 3.0
"""Seconds that other ranks wait in addition, so that the launcher or the watchdog reports a hanging rank first, with its stack traces."""


class Host:
    """Shared memory of the ranks of one host. Ranks notify each other through counters in it, which only increase.

    The memory begins with the heartbeats of the ranks (`processes/heartbeat.py`), a cache line for each.
    """

    make_error: Callable[[int, str, str], RankLost] | None = None
    """Function that creates the error from the lost rank, the phase and the reason. It is set if the world has several
    hosts.
    """

    def __init__(self, file: int, rank: int, ranks: Sequence[int], timeout: float) -> None:
        """Map the shared memory of the host's `ranks`, which are global rank numbers.

        `file` is its file descriptor, and `rank` is this rank. `timeout` is the number of seconds without a heartbeat after which
        another rank is lost.
        """
        self.rank = rank
        self.ranks = tuple(ranks)
        self.memory = RegionAllocator(file)
        self._timeout = timeout + _GRACE
        self._cells = memoryview(self.memory.region(len(ranks) * CACHE_LINE)).cast("q")
        self._offset = {peer: index * CACHE_LINE // 8 for index, peer in enumerate(ranks)}
        self._cells[self._offset[rank] + PROCESS] = os.getpid()
        if not heartbeat.is_watched():
            heartbeat.attach(self._cells_of(rank), watched=False, handle=(file, self.ranks.index(rank)))
        self._lock = Lock()
        self.avoids_long_yields = False
        """Sleep instead of yielding after a yield that took long, because processes run that only use idle time."""
        self._waits_to_sleep = 0
        self._always_sleeps = False
        self.set_core_count(usable_cores())

    def set_core_count(self, count: int) -> None:
        """Set the number of cores that the ranks have together; initially the number that this rank may use."""
        # Spinning saves some microseconds, but takes the core from a peer that has none to itself. More spinning does the
        # same if other programs run: both ranks may be on one core then (75 µs for a reduction with 2000 spins, 20 with 100).
        self._spins = _SPINS if len(self.ranks) <= count else 0

    @contextmanager
    def sleeping(self) -> Iterator[None]:
        """Sleep in every wait inside the context: another thread of this rank computes, and Python runs one thread at a time."""
        spins, self._spins, self._always_sleeps = self._spins, 0, True
        try:
            yield
        finally:
            self._spins, self._always_sleeps = spins, False

    def fence(self) -> None:
        """Order memory accesses, so that no counter update overtakes the data that it announces (x86 does this by itself).

        Two acquire-release pairs of a lock are a full memory barrier: earlier accesses stay before the first release, later ones
        stay after the second acquisition, and these two are not reordered.
        """
        for _ in range(2):
            with self._lock:
                pass

    def wait(
        self, counters: memoryview, index: int, target: int, peer: int, phase: str, timeout_factor: float = 1
    ) -> None:
        """Wait until `counters[index]` is `target` or more. `peer` is the rank of the world that increases the counter.

        Raises RankLost if that rank's process has ended, or if for `timeout_factor` times the timeout its heartbeat stops or it waits for this
        rank, directly or through other ranks.
        """
        for _ in range(self._spins):
            if counters[index] >= target:
                return
        if self._yield(counters, index, target):
            return
        start = checked = last_progress = now = time.monotonic()
        own, line = self._cells_of(self.rank), Heartbeat(self._cells_of(peer))
        progress = line.progress
        while counters[index] < target:
            # Sleep for 2 % of the time waited so far: a sleeping rank leaves the core to those that work.
            time.sleep(min(max((now - start) / 50, _SLEEPS[0]), _SLEEPS[1]))
            before, now = now, time.monotonic()
            if now - before > STOPPED_AFTER:
                last_progress = checked = now  # the other rank was stopped as well
            if now - checked > _LIVENESS_INTERVAL:
                checked = now
                Heartbeat(own).beat()
                own[WAITS_FOR] = 1 + peer
                if self._ended(peer) and counters[index] < target:
                    self._raise_lost(peer, phase)
                mutual = self._waits_for_this_rank(peer)
                if (line.progress != progress and not mutual) or line.waiting:
                    progress, last_progress = line.progress, now
                elif now - last_progress > timeout_factor * self._timeout and counters[index] < target:
                    what = "it and this rank have been waiting for each other" if mutual else "no heartbeat"
                    self._raise_lost(
                        peer,
                        phase,
                        f"{what} for {now - last_progress:.0f} s in {line.describe_location()} (see runtime.timeout)",
                    )
        own[WAITS_FOR] = 0

    def _waits_for_this_rank(self, peer: int) -> bool:
        """Return True if `peer` has been waiting for this rank, or for a rank that has been waiting for it, and so on."""
        for _ in self.ranks:
            awaited = self._cells[self._offset[peer] + WAITS_FOR] - 1
            if awaited == self.rank:
                return True
            if awaited not in self._offset:
                return False
            peer = awaited
        return False

    def _yield(self, counters: memoryview, index: int, target: int) -> bool:
        """Yield the core to other processes until the counter has reached the target. Return False if it soon has not."""
        if self._always_sleeps:
            return counters[index] >= target
        if self._waits_to_sleep:
            self._waits_to_sleep -= 1
            return counters[index] >= target
        before = time.monotonic()
        for _ in range(_YIELDS):
            if counters[index] >= target:
                return True
            os.sched_yield()
            now = time.monotonic()
            if self.avoids_long_yields and now - before > _LONG_YIELD:
                self._waits_to_sleep = _WAITS_AFTER_LONG_YIELD
                return False
            before = now
        return False

    def _raise_lost(self, peer: int, phase: str, why: str = "its process has ended") -> NoReturn:
        """Raise RankLost for `peer`, or for the rank that `peer` found lost if this is why `peer` has ended."""
        lost_by_peer, lost = self._cells[self._offset[peer] + LOST] - 1, peer
        if lost_by_peer >= 0 and self._ended(peer):
            if not self._ended(lost_by_peer):
                why = f"rank {peer} timed out waiting for it"
            lost = lost_by_peer
        self._cells[self._offset[self.rank] + LOST] = lost + 1
        if self.make_error is not None:
            error = self.make_error(lost, phase, why)
        else:
            process = self._cells[self._offset[lost] + PROCESS]  # 0: it has never started
            where = f"(process {process} on host {host_name()})" if process else f"on host {host_name()}"
            error = RankLost(f"rank {lost} {where}", phase, why)
        # other exit codes may be those of errors that rank 0 reports for all ranks
        error.reported = lost in self._offset and Heartbeat(self._cells_of(lost)).exit_code in (FAILED, RANK_LOST)
        raise error

    def _cells_of(self, rank: int) -> memoryview:
        return self._cells[self._offset[rank] : self._offset[rank] + CACHE_LINE // 8]

    def _ended(self, peer: int) -> bool:
        process = self._cells[self._offset[peer] + PROCESS]
        return process > 0 and not _alive(process)

    def channel(
        self, source: int, target: int, specs: Sequence[Spec], depth: int, phase: str, clock: Clock
    ) -> "SharedMemoryChannel | None":
        """Create a channel, see `Group.channel`. Every rank of the host calls it."""
        if self.rank in (source, target):
            return SharedMemoryChannel(self, source, specs, depth, phase, clock)
        self.memory.skip(CACHE_LINE + depth * slot_bytes(specs))
        return None

    def close(self) -> None:
        """Release the memory. The heartbeat continues where it was."""
        self.memory.close()


class SharedMemoryChannel(Channel):
    """Channel whose source and target map the same memory.

    The region starts with a counter: 1 + the number of the last message.
    """

    def __init__(self, host: Host, source: int, specs: Sequence[Spec], depth: int, phase: str, clock: Clock) -> None:
        region = host.memory.region(CACHE_LINE + depth * slot_bytes(specs))
        self._slots = make_slots(torch.frombuffer(region, dtype=torch.uint8)[CACHE_LINE:], specs, depth)
        self._sent = memoryview(region)[:CACHE_LINE].cast("q")
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
        start = perf_counter()
        self._host.wait(self._sent, 0, number + 1, self._source, self._phase)
        self._host.fence()
        self._clock.waited += perf_counter() - start

    def close(self) -> None:
        """Release the counter. The slots stay readable."""
        self._sent.release()


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"  # a zombie has ended; its parent has not collected its exit code yet
