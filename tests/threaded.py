"""Groups of ranks that are threads of this process, which need no time to start."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

from lockstep.group.group import Group
from lockstep.group.solo import Solo

Result = TypeVar("Result")


class ThreadGroup(Solo):
    """Group in which each rank is a thread. `rows` are the contributions of all ranks."""

    def __init__(self, rank: int, rows: list[Tensor], barrier: Barrier) -> None:
        super().__init__()
        self.rank, self.size = rank, len(rows)
        self._rows, self._barrier = rows, barrier

    def gather(self, parts: Tensor, phase: str) -> Tensor:
        self._rows[self.rank] = parts.clone()
        self.barrier(phase)
        everything = torch.cat(self._rows)
        self.barrier(phase)
        return everything

    def barrier(self, phase: str, patience: float = 1) -> None:
        self._barrier.wait(timeout=20)

    def close(self) -> None:
        self._barrier.abort()


def on_ranks(shares: Sequence[Sequence[int]], work: Callable[[Group, Sequence[int]], Result]) -> list[Result]:
    """Run `work(group, shards)` concurrently on one rank per share; return the results in rank order."""
    rows, barrier = [torch.zeros(0)] * len(shares), Barrier(len(shares))
    groups = [ThreadGroup(rank, rows, barrier) for rank in range(len(shares))]

    def run(group: ThreadGroup, shards: Sequence[int]) -> Result:
        try:
            return work(group, shards)
        except BaseException:
            group.close()  # otherwise the other ranks would wait
            raise

    with ThreadPoolExecutor(len(shares)) as threads:
        return list(threads.map(run, groups, shares))
