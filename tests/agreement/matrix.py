"""Experiments, the columns of a matrix, trained under one plan by real ranks."""

import os
import subprocess
import sys
from pathlib import Path

from tests.agreement.member import MATRICES
from tests.processes import digests

from lockstep.group.memory import create_memory

__all__ = ["PLANS", "Digests", "trained"]

MEMBER = Path(__file__).with_name("member.py")
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


def trained(folder: Path, matrix: str, plan: str, backend: str, kind: str) -> Digests:
    """Every column's digests, one per iteration."""
    name, size = PLANS[plan]
    memory = create_memory(size) if backend == "shared" and size > 1 else None
    meeting = f"file://{folder}/meeting" if memory is None else str(memory)
    folder.mkdir()
    own = [str(MEMBER.parents[2] / "src"), str(MEMBER.parents[2])]
    path = os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(MEMBER), str(folder), matrix, name, kind, backend, str(rank), str(size), meeting],
            env=os.environ | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            pass_fds=() if memory is None else (memory,),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    if memory is not None:
        os.close(memory)
    try:
        said = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(said)
    return {column: digests(folder / column) for column in MATRICES[matrix]}
