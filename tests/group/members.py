"""Functions that start processes of member.py."""

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
    ranks: Ranks, kind: str, scenario: str, size: int, folder: Path, count: int | None = None, cold: bool = False
) -> None:
    """Start the first `count` ranks of a world of `size` ranks (None: all) and append them to `ranks`.

    They are forked from a process that has imported PyTorch, unless `cold`.
    """
    descriptor = create_memory(size)
    environ = plain_environ()
    for rank in range(size if count is None else count):
        words = (kind, scenario, rank, size, f"file://{folder}/rendezvous")
        if cold or not ranks.warm.suits(environ):
            ranks.append(member(*words, descriptor))
        else:
            place = {"cwd": ROOT, "environ": environ, "module": "tests.group.member", "files": (descriptor,)}
            ranks.append(ranks.warm.begin(*words, FIRST, **place))
    os.close(descriptor)


def member(*arguments: object, prefix: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    """Start `python member.py ARGUMENTS`. The last argument is a file descriptor that the process inherits, or -1."""
    path = os.pathsep.join([str(MEMBER.parents[2] / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [*prefix, sys.executable, str(MEMBER), *map(str, arguments)],
        pass_fds=[int(str(arguments[-1]))] if arguments[-1] != -1 else [],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
