"""Point-to-point messages through torch.distributed, and identification of the rank that failed.

Collectives would report neither how long a rank waited for the others nor which of them is lost. Point-to-point messages show both.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from lockstep.group.authenticated_store import SECRET_RULE
from lockstep.group.channel import TIMEOUT_FACTOR, Channel, Spec, make_slots, slot_bytes
from lockstep.group.connections import late
from lockstep.group.group import Clock, RankLost
from lockstep.group.store import make_store
from lockstep.processes.heartbeat import waiting
from lockstep.processes.host_name import host_name

__all__ = ["NetworkChannel", "PointToPoint", "schedule_gloo_as_batch"]

_BACKENDS = {"nccl": "cpu:gloo,cuda:nccl"}
_FIRST_LOSS_KEY = "lockstep/lost"
"""The store's key for the rank that was lost first, and why."""
_OWN_ERROR = "it has reported an error of its own"
"""Why a rank is lost that has failed itself."""
_REPORT_TIMEOUT = 0.5
"""Seconds that a rank whose connection was closed has to report which rank it lost itself."""
_STORE_TIMEOUT = 2.0
"""Seconds that the store has to answer."""
_LINGER = 5.0
"""Seconds that a rank waits at the end until the others have received its messages."""

_T = TypeVar("_T")


class PointToPoint:
    """One rank's connections to all others. Messages are bytes on the CPU, distinguished by tags."""

    def __init__(
        self, backend: str, rank: int, size: int, timeout: float, init_method: str, secret: bytes | None = None
    ) -> None:
        """Connect to the other ranks, unless torch.distributed is initialized already. `timeout` is in seconds, per wait.

        `secret` is that of `make_store`. Raises RankLost if not all ranks connect in time.
        """
        self.rank = rank
        self.size = size
        self.hosts: Sequence[str] = ()
        """Host name of every rank; empty: not known yet."""
        self._timeout = timeout
        self._tags = 0
        self._store: Store | None = None
        self._owns_process_group = not dist.is_initialized()
        if self._owns_process_group:
            self._initialize(_BACKENDS.get(backend, backend), init_method, secret)
        schedule_gloo_as_batch()
        self.nccl = "nccl" in str(dist.get_backend_config())
        """True if NCCL moves the tensors that are on CUDA devices."""

    def _initialize(self, backend: str, init_method: str, secret: bytes | None) -> None:
        limit, rule = timedelta(seconds=self._timeout), "" if secret is None else f"; {SECRET_RULE}"
        try:
            with waiting():
                if backend == "mpi":  # MPI has its own rendezvous
                    dist.init_process_group(backend, timeout=limit)
                    return
                store = make_store(init_method, self.rank, self.size, limit, secret)
                store.set_timeout(limit)
                self._store = store
                store.set(_present_key(self.rank), "")
                dist.init_process_group(backend, timeout=limit, world_size=self.size, rank=self.rank, store=store)
        except TimeoutError as error:
            raise RankLost(error.args[0], "start", f"{error.args[1]}{rule}") from None
        except (RuntimeError, ValueError) as error:
            if missing := self._missing():
                raise RankLost(missing, "start", f"{late(self._timeout)}{rule}") from error
            # rank 0 has the store
            peer = (
                "rank 0" if self.rank and self._store is None else f"a peer of rank {self.rank} on host {host_name()}"
            )
            raise RankLost(peer, "start", _first_line(error)) from error

    def _missing(self) -> str:
        """Return the ranks that have not connected to the store, as `rank 1, 2`; empty if there are none, or none are known."""

        def query(store: Store) -> list[int]:
            return [rank for rank in range(self.size) if not store.check([_present_key(rank)])]

        missing: list[int] = self._query_store(query, [])
        return f"rank {', '.join(map(str, missing))}" if missing else ""

    @property
    def has_store(self) -> bool:
        """True if the ranks have a store, which they don't if MPI or another program connected them."""
        return self._store is not None

    def add(self, key: str, amount: int) -> int:
        """Add a number to a counter of the store, and return the sum. Raises RankLost if the store does not answer."""
        assert self._store is not None
        try:
            with waiting():
                return self._store.add(key, amount)
        except RuntimeError as error:
            self._raise_lost(0, "rollout", error)

    def reserve_tags(self, count: int) -> int:
        """Reserve `count` consecutive tags and return the first. Every rank calls it in the same order."""
        self._tags += count
        return self._tags - count

    def send(self, message: Tensor, target: int, tag: int, phase: str) -> dist.Work:
        """Start sending bytes. The caller must not change them until the work is done.

        Raises RankLost if the connection is closed.
        """
        try:
            work = dist.isend(message, target, tag=tag)
        except RuntimeError as error:
            self._raise_lost(target, phase, error)
        assert work is not None
        return work

    def receive(self, message: Tensor, source: int, tag: int, phase: str) -> dist.Work:
        """Start receiving bytes. Raises RankLost if the connection is closed."""
        try:
            work = dist.irecv(message, source, tag=tag)
        except RuntimeError as error:
            self._raise_lost(source, phase, error)
        assert work is not None
        return work

    def wait(self, work: dist.Work, peer: int, phase: str, timeout_factor: float = 1) -> None:
        """Wait until `work` is done, at most `timeout_factor` times the timeout. Raises RankLost for the rank that was lost."""
        try:
            with waiting():
                work.wait(timedelta(seconds=timeout_factor * self._timeout))
        except RuntimeError as error:
            self._raise_lost(peer, phase, error, timeout_factor)

    def wait_briefly(self, work: dist.Work) -> None:
        """Wait a few seconds for `work`, and ignore failures."""
        with suppress(RuntimeError):
            work.wait(timedelta(seconds=min(self._timeout, _LINGER)))

    def _raise_lost(self, peer: int, phase: str, error: RuntimeError, timeout_factor: float = 1) -> NoReturn:
        if "imed out" in str(error):
            late = f"no response within {timeout_factor * self._timeout:g} s (see runtime.timeout)"
            raise self.make_error(peer, phase, late) from error
        # A rank that gives up closes its connections to all others: it may have lost another rank and be about to report it.
        raise self.make_error(peer, phase, "its connection was closed", _REPORT_TIMEOUT) from error

    def make_error(self, peer: int, phase: str, why: str, timeout: float = 0.0) -> RankLost:
        """Create the error for the rank that was lost first.

        That is `peer`, unless another rank reports a lost rank within `timeout` seconds.
        """
        rank, why = self._first_loss(peer, why, timeout)
        where = f" on host {self.hosts[rank]}" if self.hosts else ""
        error = RankLost(f"rank {rank}{where}", phase, why)
        error.reported = why == _OWN_ERROR
        return error

    def report_failure(self) -> None:
        """Tell the other ranks that this rank ends with an error that it reports itself. Their `RankLost` is then `reported`."""
        self._first_loss(self.rank, _OWN_ERROR, 0.0)

    def _first_loss(self, peer: int, why: str, timeout: float) -> tuple[int, str]:
        """Return the rank that was lost first, and why. The store keeps the first report, so all ranks get the same."""

        def query(store: Store) -> tuple[int, str]:
            deadline = time.monotonic() + timeout
            while not store.check([_FIRST_LOSS_KEY]) and time.monotonic() < deadline:
                time.sleep(0.02)
            rank, _, reason = store.compare_set(_FIRST_LOSS_KEY, "", f"{peer} {why}").decode().partition(" ")
            return int(rank), reason

        return self._query_store(query, (peer, why), timeout)

    def _query_store(self, query: Callable[[Store], _T], default: _T, timeout: float = 0.0) -> _T:
        """Return the result of `query`, or `default` after `timeout` and the time that the store has to answer.

        The query runs in a thread, because it never returns if the rank that holds the store is lost.
        """
        store, results = self._store, [default]
        if store is None:
            return default

        def work() -> None:
            with suppress(RuntimeError, ValueError):
                results.append(query(store))

        thread = Thread(target=work, daemon=True)
        thread.start()
        thread.join(timeout + _STORE_TIMEOUT)
        return results[-1]

    def close(self) -> None:
        """Close the connections, if this object opened them."""
        if self._owns_process_group and dist.is_initialized():
            dist.destroy_process_group()


class NetworkChannel(Channel):
    """Channel over the network: both ranks have slots of their own. A message consists of its number and the slot's bytes."""

    def __init__(
        self,
        p2p: PointToPoint,
        source: int,
        target: int,
        specs: Sequence[Spec],
        depth: int,
        phase: str,
        clock: Clock,
        tag: int,
    ) -> None:
        """Create one end of the channel. It uses the tags `tag` and `tag + 1`."""
        size = slot_bytes(specs)
        memory = torch.zeros(depth * size, dtype=torch.uint8)
        self._slots = make_slots(memory, specs, depth)
        self._bodies = [memory[k * size : (k + 1) * size] for k in range(depth)]
        self._numbers = torch.zeros(depth, 1, dtype=torch.int64)
        self._pending: list[list[dist.Work]] = [[] for _ in range(depth)]
        self._received = -1
        self._p2p = p2p
        self._source = source
        self._target = target
        self._phase = phase
        self._clock = clock
        self._tag = tag

    def send(self, number: int) -> None:
        """See `Channel.send`."""
        start = perf_counter()
        slot = number % len(self._bodies)
        for work in self._pending[slot]:
            self._p2p.wait(work, self._target, self._phase)
        waited = perf_counter()
        self._numbers[slot] = number
        messages = (self._numbers[slot].view(torch.uint8), self._bodies[slot])
        self._pending[slot] = [
            self._p2p.send(message, self._target, self._tag + k, self._phase) for k, message in enumerate(messages)
        ]
        self._clock.waited += waited - start
        self._clock.transferred += perf_counter() - waited

    def receive(self, number: int) -> None:
        """See `Channel.receive`."""
        while self._received < number:
            start = perf_counter()
            self._receive_bytes(self._numbers[0].view(torch.uint8), self._tag)
            waited = perf_counter()
            self._received = int(self._numbers[0])
            self._receive_bytes(self._bodies[self._received % len(self._bodies)], self._tag + 1)
            self._clock.waited += waited - start
            self._clock.transferred += perf_counter() - waited

    def _receive_bytes(self, message: Tensor, tag: int) -> None:
        work = self._p2p.receive(message, self._source, tag, self._phase)
        self._p2p.wait(work, self._source, self._phase, TIMEOUT_FACTOR)

    def close(self) -> None:
        """See `Channel.close`."""
        for works in self._pending:
            while works:
                self._p2p.wait_briefly(works.pop(0))


def schedule_gloo_as_batch(policy: int | None = None) -> None:
    """Set the scheduling policy of gloo's thread, SCHED_BATCH by default, so that it does not interrupt a rank that sends.

    A rank holds a connection's lock while it sends. A message that arrives meanwhile wakes gloo's thread, which may interrupt the rank
    on its core and then spins on that lock until its time slice is over: 4 ms instead of 0.1 ms for a message, on a busy machine. Under
    SCHED_BATCH the thread waits until the rank sleeps. Does nothing on systems other than Linux.
    """
    tasks = Path("/proc/self/task")
    with suppress(OSError, AttributeError):
        for task in tasks.iterdir():
            if task.joinpath("comm").read_text().strip() == "gloo_tcp_loop":
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH if policy is None else policy, os.sched_param(0))


def _present_key(rank: int) -> str:
    return f"lockstep/here/{rank}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
