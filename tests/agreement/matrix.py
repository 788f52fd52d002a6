"""Experiments, the columns of a matrix, trained under one plan by real ranks."""

import os
from pathlib import Path

from tests.agreement.member import MATRICES
from tests.processes import digests
from tests.warm import ROOT, Warm

from lockstep.group.memory import create_memory

__all__ = ["PLANS", "Digests", "trained"]

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


def trained(warm: Warm, folder: Path, matrix: str, plan: str, backend: str, kind: str) -> Digests:
    """Every column's digests, one per iteration."""
    name, size = PLANS[plan]
    memory = create_memory(size) if backend == "shared" and size > 1 else None
    meeting = f"file://{folder}/meeting" if memory is None else str(memory)
    folder.mkdir()
    place = {"cwd": ROOT, "environ": warm.environ | {"GLOO_SOCKET_IFNAME": "lo"}, "one_output": True}
    ranks = [
        warm.start(
            "tests.agreement.member",
            *(folder, matrix, name, kind, backend, rank, size, meeting),
            kept=() if memory is None else (memory,),
            **place,
        )
        for rank in range(size)
    ]
    if memory is not None:
        os.close(memory)
    try:
        ended = [rank.wait(100) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.rc for rank in ended] == [0] * size, "\n".join(rank.stdout for rank in ended)
    return {column: digests(folder / column) for column in MATRICES[matrix]}
