"""Numbers of threads and cores."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from lockstep.runtime.settings import RuntimeConfig

__all__ = ["arithmetic_threads", "limit_threads", "preserve_thread_limits", "share_of_cores"]


def limit_threads(threads: int) -> None:
    """Set the number of threads inside PyTorch's and NumPy's operations.

    The number is fixed because sums may round differently with another number.
    """
    torch.set_num_threads(threads)
    threadpool_limits(threads)


@contextmanager
def preserve_thread_limits() -> Iterator[None]:
    """Restore the thread limits at the end of the block, for programs that do other things too."""
    previous_threads = torch.get_num_threads()
    with threadpool_limits():
        try:
            yield
        finally:
            torch.set_num_threads(previous_threads)


def arithmetic_threads(config: RuntimeConfig, trains: bool) -> int:
    """Return the number of threads of a rank that trains, or of one that only plays."""
    return config.threads if trains or config.player_threads is None else config.player_threads


def share_of_cores(local_rank: int, ranks: int, cores: int) -> int:
    """Return the number of cores for one of the `ranks` of a host, at least 1. The shares differ by at most 1."""
    return max(1, cores // ranks + (local_rank < cores % ranks))
