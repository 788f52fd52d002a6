"""Starts processes of member.py."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from tests.conftest import plain_environ
from tests.forked import FIRST
from tests.warm import ROOT, Warm

from lockstep.group.memory import create_memory

MEMBER = Path(__file__).with_name("member.py")
HOST = re.escape(socket.gethostname())


class Ranks(list["subprocess.Popen[str]"]):
    """Processes that were started, and what forks them."""

    def __init__(self, warm: Warm) -> None:
        super().__init__()
        self.warm = warm


def start(
    ranks: Ranks, kind: str, scenario: str, size: int, folder: Path, come: int | None = None, cold: bool = False
) -> None:
    """The first `come` ranks of a world; None: all. They are forked from a process that has imported PyTorch, unless `cold`."""
    descriptor = create_memory(size)
    environ = plain_environ()
    for rank in range(size if come is None else come):
        words = (kind, scenario, rank, size, f"file://{folder}/meeting")
        if cold or not ranks.warm.suits(environ):
            ranks.append(member(*words, descriptor))
        else:
            place = {"cwd": ROOT, "environ": environ, "module": "tests.group.member", "files": (descriptor,)}
            ranks.append(ranks.warm.begin(*words, FIRST, **place))
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
