"""Several ranks in one process, each a thread: groups of any shape, without waiting for processes to start."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

from lockstep.group.group import Group
from lockstep.group.solo import Solo

Result = TypeVar("Result")


class Threaded(Solo):
    """One rank. `rows` is what all of them put down."""

    def __init__(self, rank: int, rows: list[Tensor], meeting: Barrier) -> None:
        super().__init__()
        self.rank, self.size = rank, len(rows)
        self._rows, self._meeting = rows, meeting

    def gather(self, parts: Tensor, phase: str) -> Tensor:
        self._rows[self.rank] = parts.clone()
        self.barrier(phase)
        everything = torch.cat(self._rows)
        self.barrier(phase)
        return everything

    def barrier(self, phase: str, patience: float = 1) -> None:
        self._meeting.wait(timeout=20)

    def close(self) -> None:
        self._meeting.abort()


def on_ranks(shares: Sequence[Sequence[int]], work: Callable[[Group, Sequence[int]], Result]) -> list[Result]:
    """`work(group, shards)` on one rank per share, all at once; what each returned."""
    rows, meeting = [torch.zeros(0)] * len(shares), Barrier(len(shares))
    groups = [Threaded(rank, rows, meeting) for rank in range(len(shares))]

    def run(group: Threaded, shards: Sequence[int]) -> Result:
        try:
            return work(group, shards)
        except BaseException:
            group.close()  # or the others would wait
            raise

    with ThreadPoolExecutor(len(shares)) as threads:
        return list(threads.map(run, groups, shares))
