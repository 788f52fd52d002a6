"""Starts processes of member.py."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from lockstep.group.memory import create_memory

MEMBER = Path(__file__).with_name("member.py")
HOST = re.escape(socket.gethostname())

Ranks = list["subprocess.Popen[str]"]


def start(ranks: Ranks, kind: str, scenario: str, size: int, folder: Path, come: int | None = None) -> None:
    """The first `come` ranks of a world; None: all."""
    descriptor = create_memory(size)
    for rank in range(size if come is None else come):
        ranks.append(member(kind, scenario, rank, size, f"file://{folder}/meeting", descriptor))
    os.close(descriptor)


def member(*words: object, prefix: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    """`python member.py WORDS`, of which the last is a file descriptor to pass on, or -1."""
    path = os.pathsep.join([str(MEMBER.parents[2] / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [*prefix, sys.executable, str(MEMBER), *map(str, words)],
        pass_fds=[int(str(words[-1]))] if words[-1] != -1 else [],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
