"""Ranks of one host: their local ranks, and how they share its cores."""

from dataclasses import dataclass

import torch

from lockstep.group.group import Group
from lockstep.group.neighbors import host_id
from lockstep.processes.cores import core_numbers, usable_cores
from lockstep.runtime.threads import share_of_cores

__all__ = ["HostSlot", "find_host_slot"]

_WORDS = 32
"""Number of 32-bit words for the set of a host's cores. Core numbers from 1024 on wrap around."""


@dataclass(frozen=True)
class HostSlot:
    """A rank's share of its host."""

    local_rank: int
    """Index of the rank among the ranks of its host."""
    cores: int
    """Number of cores for this rank alone: the usable cores are split among the ranks; 1 if there are fewer cores."""
    host_cores: int
    """Number of cores that the host's ranks may use together."""
    own_core: int | None = None
    """Core for this rank, if the ranks that may use the same cores are exactly as many as these; else None."""


def find_host_slot(group: Group) -> HostSlot:
    """Return this rank's share of its host. Every rank calls it.

    Cores are split only among the ranks that are bound to the same set of cores.
    """
    if group.size == 1:
        return HostSlot(0, usable_cores(), usable_cores())
    rows = group.gather(torch.tensor([[host_id(), *_core_set()]]), "start")
    own_row = rows[group.rank]
    on_host = rows[:, 0] == own_row[0]
    same_cores = (rows == own_row).all(1)
    host_cores = [0] * _WORDS
    for row in rows[on_host].tolist():
        host_cores = [word | other for word, other in zip(host_cores, row[1:], strict=True)]
    index, count = int(same_cores[: group.rank].sum()), int(same_cores.sum())
    return HostSlot(
        local_rank=int(on_host[: group.rank].sum()),
        cores=share_of_cores(index, count, usable_cores()),
        host_cores=max(1, sum(word.bit_count() for word in host_cores)),
        own_core=core_numbers()[index] if count == usable_cores() else None,
    )


def _core_set() -> list[int]:
    """Return the cores that this process may use, as bits of 32-bit words."""
    words = [0] * _WORDS
    for core in core_numbers():
        words[core // 32 % _WORDS] |= 1 << core % 32
    return words
