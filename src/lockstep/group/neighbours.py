"""Which ranks are on one host, and may share memory."""

import os
import socket
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch

from lockstep.group.group import Group
from lockstep.group.memory import create_memory

__all__ = ["find_neighbours"]


def find_neighbours(group: Group) -> tuple[list[list[int]], int]:
    """The ranks of each host where two or more can open the same memory, and a file descriptor of this rank's, or -1.

    Every rank of the world calls it.
    """
    names = group.gather(torch.tensor([[_host()]]), "start")[:, 0].tolist()
    hosts = [[rank for rank, name in enumerate(names) if name == host] for host in sorted(set(names), key=names.index)]
    mine = next(ranks for ranks in hosts if group.rank in ranks)
    first = group.rank == mine[0]
    memory = _create(mine) if first else -1
    process, number = group.gather(torch.tensor([[os.getpid(), memory]]), "start").tolist()[mine[0]]
    if not first:
        memory = _open(f"/proc/{process}/fd/{number}")
    # the file itself, not only its name: in another container the same process id may be somebody else
    opened = group.gather(torch.tensor([_identity(memory)]), "start").tolist()
    neighbours = [
        ranks for ranks in hosts if opened[ranks[0]][0] >= 0 and all(opened[rank] == opened[ranks[0]] for rank in ranks)
    ]
    if mine not in neighbours and memory >= 0:
        os.close(memory)
        memory = -1
    return neighbours, memory


def _create(ranks: Sequence[int]) -> int:
    try:
        return create_memory(len(ranks)) if len(ranks) > 1 else -1
    except OSError:
        return -1


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR)
    except OSError:
        return -1


def _identity(memory: int) -> list[int]:
    if memory < 0:
        return [-1, -1]
    found = os.fstat(memory)
    return [found.st_dev, found.st_ino]


def _host() -> int:
    boot = Path("/proc/sys/kernel/random/boot_id")
    name = socket.gethostname() + (boot.read_text() if boot.exists() else "")
    return zlib.crc32(name.encode())
