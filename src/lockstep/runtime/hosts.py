"""What a rank shares with the others of its host."""

import os
import socket
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch

from lockstep.group.group import Group
from lockstep.group.memory import usable_cores
from lockstep.runtime.threads import share_of_cores

__all__ = ["HostSlot", "number_of", "take_seat"]

_WORDS = 32
"""Of 32 bits, for the cores of a host; what lies beyond is not told apart."""


@dataclass(frozen=True)
class HostSlot:
    """A rank's place on its host."""

    local_rank: int
    """Its number among the ranks of its host."""
    cores: int
    """How many cores are its own: a host's ranks have all that they may use, and none twice unless there are too few."""
    host_cores: int
    """Cores that the host's ranks may use together."""


def take_seat(group: Group) -> HostSlot:
    """Every rank calls it. Launchers may bind each rank to cores of its own: only ranks with the same cores share them."""
    if group.size == 1:
        return HostSlot(0, usable_cores(), usable_cores())
    everybody = group.gather(torch.tensor([[_host(), *_cores()]]), "start")
    own = everybody[group.rank]
    on_host = everybody[:, 0] == own[0]
    alike = (everybody == own).all(1)
    together = [0] * _WORDS
    for row in everybody[on_host].tolist():
        together = [mine | other for mine, other in zip(together, row[1:], strict=True)]
    return HostSlot(
        local_rank=int(on_host[: group.rank].sum()),
        cores=share_of_cores(int(alike[: group.rank].sum()), int(alike.sum()), usable_cores()),
        host_cores=max(1, sum(word.bit_count() for word in together)),
    )


def number_of(text: str) -> int:
    """A number by which ranks compare texts."""
    return zlib.crc32(text.encode())


def _host() -> int:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return number_of(socket.gethostname() + (boot.read_text() if boot.exists() else ""))


def _cores() -> list[int]:
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    words = [0] * _WORDS
    for core in cores:
        words[core // 32 % _WORDS] |= 1 << core % 32
    return words
