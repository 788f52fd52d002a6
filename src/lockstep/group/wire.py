"""Messages from one rank to one other through torch.distributed, and who is to blame when they stop.

Collectives would say neither how long a rank waited for the others nor which of them is lost. Messages do both.
"""

import os
import socket
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
from torch.distributed.rendezvous import rendezvous

from lockstep.group.channel import PATIENCE, Channel, Spec, footprint, laid_out
from lockstep.group.group import Clock, RankLost

__all__ = ["NetworkChannel", "Wire", "let_finish"]

_BACKENDS = {"nccl": "cpu:gloo,cuda:nccl"}
_WORD = "lockstep/lost"
_PATIENCE = 0.5
"""Seconds that a rank whose connection broke has to say which rank it lost itself."""
_ANSWER = 2.0
"""Seconds that the store has to answer."""
_LINGER = 5.0
"""Seconds that messages which nobody has asked for yet are kept at the end."""

_T = TypeVar("_T")


class Wire:
    """One rank's connections to all others. Messages are bytes on the CPU, told apart by tags."""

    def __init__(self, backend: str, rank: int, size: int, timeout: float, init_method: str) -> None:
        """Meets the other ranks, unless this process has met them already. `timeout` in seconds bounds every wait.

        Raises RankLost when they do not all come.
        """
        self.rank = rank
        self.size = size
        self.hosts: Sequence[str] = ()
        """Every rank's host, when it is known."""
        self._timeout = timeout
        self._tags = 0
        self._store: Store | None = None
        self._owned = not dist.is_initialized()
        if self._owned:
            self._meet(_BACKENDS.get(backend, backend), init_method)
        let_finish()
        self.nccl = "nccl" in str(dist.get_backend_config())
        """Whether tensors on CUDA devices have connections of their own."""

    def _meet(self, backend: str, init_method: str) -> None:
        limit = timedelta(seconds=self._timeout)
        try:
            if backend == "mpi":  # knows its ranks itself
                dist.init_process_group(backend, timeout=limit)
                return
            store, _, _ = next(rendezvous(init_method, self.rank, self.size, timeout=limit))
            store.set_timeout(limit)
            self._store = store
            store.set(_here(self.rank), "")
            dist.init_process_group(backend, timeout=limit, world_size=self.size, rank=self.rank, store=store)
        except (RuntimeError, ValueError) as error:
            raise RankLost(self._missing(), "start", _first_line(error)) from error

    def _missing(self) -> str:
        """Who has not come to the meeting."""

        def ask(store: Store) -> list[int]:
            return [rank for rank in range(self.size) if not store.check([_here(rank)])]

        missing: list[int] = self._answer(ask, [])
        if missing:
            return f"rank {', '.join(map(str, missing))}"
        return f"a peer of rank {self.rank} on host {socket.gethostname()}"

    def tags(self, count: int) -> int:
        """The first of `count` tags that nobody else uses. Every rank asks in the same order."""
        self._tags += count
        return self._tags - count

    def send(self, message: Tensor, target: int, tag: int, phase: str) -> dist.Work:
        """Begins to send bytes, which stay untouched until the work is done. Raises RankLost."""
        try:
            work = dist.isend(message, target, tag=tag)
        except RuntimeError as error:
            self._lose(target, phase, error)
        assert work is not None
        return work

    def receive(self, message: Tensor, source: int, tag: int, phase: str) -> dist.Work:
        """Begins to receive bytes. Raises RankLost."""
        try:
            work = dist.irecv(message, source, tag=tag)
        except RuntimeError as error:
            self._lose(source, phase, error)
        assert work is not None
        return work

    def wait(self, work: dist.Work, peer: int, phase: str, patience: float = 1) -> None:
        """Waits until `work` is done, at most `patience` times the timeout. Raises RankLost for `peer`, or for the rank that
        `peer` has lost.
        """
        try:
            work.wait(timedelta(seconds=patience * self._timeout))
        except RuntimeError as error:
            self._lose(peer, phase, error, patience)

    def linger(self, work: dist.Work) -> None:
        """Waits some seconds until `work` is done; whether it was does not matter any more."""
        with suppress(RuntimeError):
            work.wait(timedelta(seconds=min(self._timeout, _LINGER)))

    def _lose(self, peer: int, phase: str, error: RuntimeError, patience: float = 1) -> NoReturn:
        if "imed out" in str(error):
            late = f"it did not arrive within {patience * self._timeout:g} s (see runtime.timeout)"
            raise self.blame(peer, phase, late) from error
        # Who gives up ends its connections to everybody, so it may have lost another rank and be about to say so.
        raise self.blame(peer, phase, "its connection has ended", _PATIENCE) from error

    def blame(self, peer: int, phase: str, why: str, patience: float = 0.0) -> RankLost:
        """The error of a rank that lost `peer`, or of what another rank has said: the first word counts.

        `patience` is how many seconds another one is given to say something.
        """
        rank, why = self._word(peer, why, patience)
        where = f" on host {self.hosts[rank]}" if self.hosts else ""
        return RankLost(f"rank {rank}{where}", phase, why)

    def _word(self, peer: int, why: str, patience: float) -> tuple[int, str]:
        """Which rank was lost first, and why. It is kept in the store, where one rank after the other looks."""

        def ask(store: Store) -> tuple[int, str]:
            until = time.monotonic() + patience
            while not store.check([_WORD]) and time.monotonic() < until:
                time.sleep(0.02)
            rank, _, first = store.compare_set(_WORD, "", f"{peer} {why}").decode().partition(" ")
            return int(rank), first

        return self._answer(ask, (peer, why), patience)

    def _answer(self, ask: Callable[[Store], _T], otherwise: _T, seconds: float = 0.0) -> _T:
        """What the store says within `seconds` and a little more. It may be lost as well, and then does not come back."""
        store, said = self._store, [otherwise]
        if store is None:
            return otherwise

        def work() -> None:
            with suppress(RuntimeError, ValueError):
                said.append(ask(store))

        asking = Thread(target=work, daemon=True)
        asking.start()
        asking.join(seconds + _ANSWER)
        return said[-1]

    def close(self) -> None:
        """Ends the connections."""
        if self._owned and dist.is_initialized():
            dist.destroy_process_group()


class NetworkChannel(Channel):
    """Each end has arrays of its own. A message is its number, then the whole slot."""

    def __init__(
        self,
        wire: Wire,
        source: int,
        target: int,
        specs: Sequence[Spec],
        depth: int,
        phase: str,
        clock: Clock,
        tag: int,
    ) -> None:
        """Uses the tags `tag` and `tag + 1`."""
        size = footprint(specs)
        memory = torch.zeros(depth * size, dtype=torch.uint8)
        self._slots = laid_out(memory, specs, depth)
        self._bodies = [memory[k * size : (k + 1) * size] for k in range(depth)]
        self._numbers = torch.zeros(depth, 1, dtype=torch.int64)
        self._going: list[list[dist.Work]] = [[] for _ in range(depth)]
        self._came = -1
        self._wire = wire
        self._source = source
        self._target = target
        self._phase = phase
        self._clock = clock
        self._tag = tag

    def send(self, number: int) -> None:
        """See `Channel.send`."""
        begun = perf_counter()
        slot = number % len(self._bodies)
        for work in self._going[slot]:
            self._wire.wait(work, self._target, self._phase)
        waited = perf_counter()
        self._numbers[slot] = number
        messages = (self._numbers[slot].view(torch.uint8), self._bodies[slot])
        self._going[slot] = [
            self._wire.send(message, self._target, self._tag + k, self._phase) for k, message in enumerate(messages)
        ]
        self._clock.waited += waited - begun
        self._clock.moved += perf_counter() - waited

    def receive(self, number: int) -> None:
        """See `Channel.receive`."""
        while self._came < number:
            begun = perf_counter()
            self._take(self._numbers[0].view(torch.uint8), self._tag)
            waited = perf_counter()
            self._came = int(self._numbers[0])
            self._take(self._bodies[self._came % len(self._bodies)], self._tag + 1)
            self._clock.waited += waited - begun
            self._clock.moved += perf_counter() - waited

    def _take(self, message: Tensor, tag: int) -> None:
        work = self._wire.receive(message, self._source, tag, self._phase)
        self._wire.wait(work, self._source, self._phase, PATIENCE)

    def close(self) -> None:
        """See `Channel.close`."""
        for works in self._going:
            while works:
                self._wire.linger(works.pop(0))


def let_finish(policy: int | None = None) -> None:
    """Keeps gloo's thread from interrupting whoever is just sending.

    A rank holds a connection's lock while it sends. What arrives meanwhile wakes gloo's thread, which may interrupt the rank on
    its core and then tries for that lock, without sleeping, until its time slice has passed: 4 ms instead of 0.1 ms for a
    message, on a machine that is busy. Under SCHED_BATCH it waits until the rank sleeps. Elsewhere than on Linux: nothing.
    """
    tasks = Path("/proc/self/task")
    with suppress(OSError, AttributeError):
        for task in tasks.iterdir():
            if task.joinpath("comm").read_text().strip() == "gloo_tcp_loop":
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH if policy is None else policy, os.sched_param(0))


def _here(rank: int) -> str:
    return f"lockstep/here/{rank}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
