"""Neighbors: ranks of one host that can share memory."""

import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch

from lockstep.group.group import Group
from lockstep.group.memory import create_memory
from lockstep.processes.host_name import host_name

__all__ = ["find_neighbors", "host_id"]


def find_neighbors(group: Group) -> tuple[list[list[int]], int]:
    """Find the ranks of each host that can open the same memory. Omit hosts with one rank, or without such memory.

    Return a list of ranks for each other host, and the file descriptor of this rank's memory, or -1. Every rank of the
    world calls it.
    """
    ids = group.gather(torch.tensor([[host_id()]]), "start")[:, 0].tolist()
    hosts = [[rank for rank, other in enumerate(ids) if other == host] for host in sorted(set(ids), key=ids.index)]
    own_host = next(ranks for ranks in hosts if group.rank in ranks)
    is_first = group.rank == own_host[0]
    memory = _create(own_host) if is_first else -1
    process, descriptor = group.gather(torch.tensor([[os.getpid(), memory]]), "start").tolist()[own_host[0]]
    if not is_first:
        memory = _open(f"/proc/{process}/fd/{descriptor}")
    # compare the file itself, not only its name: in another container the same process id may belong to another process
    files = group.gather(torch.tensor([_file_id(memory)]), "start").tolist()
    neighbors = [
        ranks for ranks in hosts if files[ranks[0]][0] >= 0 and all(files[rank] == files[ranks[0]] for rank in ranks)
    ]
    if own_host not in neighbors and memory >= 0:
        os.close(memory)
        memory = -1
    return neighbors, memory


def host_id() -> int:
    """Return a checksum of the host's name and boot id, by which ranks find out whether they are on one host."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    name = host_name() + (boot.read_text() if boot.exists() else "")
    return zlib.crc32(name.encode())


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


def _file_id(memory: int) -> list[int]:
    if memory < 0:
        return [-1, -1]
    status = os.fstat(memory)
    return [status.st_dev, status.st_ino]
