"""Threads and cores."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from lockstep.runtime.settings import RuntimeConfig

__all__ = ["arithmetic_threads", "limit_threads", "own_threads", "share_of_cores"]


def limit_threads(threads: int) -> None:
    """Threads inside PyTorch's and NumPy's operations: fixed, because another number may round sums differently."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)


@contextmanager
def own_threads() -> Iterator[None]:
    """What limits are set while it lasts are lifted after it: for programs that do other things too."""
    before = torch.get_num_threads()
    with threadpool_limits():
        try:
            yield
        finally:
            torch.set_num_threads(before)


def arithmetic_threads(config: RuntimeConfig, trains: bool) -> int:
    """Threads of a rank that trains, or of one that only plays."""
    return config.threads if trains or config.player_threads is None else config.player_threads


def share_of_cores(local_rank: int, ranks: int, cores: int) -> int:
    """Cores for one of a host's `ranks`: together they have all of them and none twice; with more ranks than cores, 1 each."""
    return max(1, cores // ranks + (local_rank < cores % ranks))
