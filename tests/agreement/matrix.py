"""Experiments, the columns of a matrix, trained under one plan by real ranks.

Ranks are forked from two processes that have imported PyTorch: even ranks from one, odd ranks and a rank that is alone from the other.
The results of rank 0 are compared with those of the rank that is alone: the two share neither addresses nor the order of sets.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.agreement.member import ITERATIONS, MATRICES
from tests.conftest import plain_environ
from tests.live_runs import digests
from tests.warm import ROOT, Warm

from lockstep.group.memory import create_memory

__all__ = ["PLANS", "Digests", "Trained", "check_columns", "every", "trainer"]

PLANS = {
    "solo": ("coupled", 1),
    "coupled x 2": ("coupled", 2),
    "coupled x 3": ("coupled", 3),  # four shards: 2, 1, 1
    "coupled x 4": ("coupled", 4),
    "1:1": ("1:1", 2),
    "1:2": ("1:2", 3),
    "2:1": ("2:1", 3),
    "2:2": ("2:2", 4),
    "3:1": ("3:1", 4),
    "one-player": ("one-player", 3),
    "one-trainer": ("one-trainer", 3),
}
Digests = dict[str, list[str]]
Trained = Callable[..., Digests]
_DESCRIPTOR = 3
"""Number of the first inherited file descriptor in a forked program."""


def trainer(*servers: Warm) -> Trained:
    """Return the function that trains columns. The ranks are forked from two `servers`."""

    def trained(folder: Path, matrix: str, plan: str, backend: str, kind: str, columns: Sequence[str] = ()) -> Digests:
        """Train `columns`, by default all, and return the digests of each column, one per iteration."""
        columns = columns or list(MATRICES[matrix])
        name, size = PLANS[plan]
        memory = create_memory(size) if backend == "shared" and size > 1 else None
        meeting = f"file://{folder}/rendezvous" if memory is None else _DESCRIPTOR
        folder.mkdir()
        ranks = [
            servers[rank % 2 if size > 1 else 1].start(
                *(folder, matrix, name, kind, backend, rank, size, meeting, *columns),
                cwd=ROOT,
                environ=_environ(),
                module="tests.agreement.member",
                files=() if memory is None else (memory,),
            )
            for rank in range(size)
        ]
        if memory is not None:
            os.close(memory)
        try:
            finished = [rank.wait(100) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.rc for rank in finished] == [0] * size, "\n".join(rank.stdout + rank.stderr for rank in finished)
        return {column: digests(folder / column) for column in columns}

    return trained


def check_columns(found: Digests, alone: Digests) -> None:
    """Assert that all iterations were trained, to the digests of one rank."""
    assert {len(digests) for digests in found.values()} == {ITERATIONS}
    assert [column for column in found if found[column] != alone[column]] == []


def every(columns: Iterable[str], step: int, first: int) -> list[str]:
    """Return every `step`-th column from `first` on, so that tests with different `first` cover all columns together."""
    return list(columns)[first % step :: step]


def _environ() -> dict[str, str]:
    return plain_environ() | {"GLOO_SOCKET_IFNAME": "lo"}
