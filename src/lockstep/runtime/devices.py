"""Which device a rank computes on, and that those of all ranks go together."""

import os
from collections.abc import Collection
from typing import NoReturn

import torch

from lockstep.group.group import Group
from lockstep.run.stop import end_unheard
from lockstep.runtime.hosts import HostSlot, number_of
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RuntimeConfig

__all__ = ["Devices", "choose_devices", "refuse"]

_TRAINS, _PLAYS = "device", "player_device"
"""What a rank does, by the field that says where."""


class Devices:
    """Of one rank."""

    def __init__(self, trainer: torch.device, player: torch.device, own_gpus: bool) -> None:
        self.trainer = trainer
        """Where it computes as a trainer."""
        self.player = player
        """Where it computes as a player."""
        self.own_gpus = own_gpus
        """Whether every trainer has a GPU for itself, as NCCL needs it."""


def choose_devices(
    place: RankInfo,
    config: RuntimeConfig,
    group: Group,
    seat: HostSlot,
    trainers: Collection[int],
    players: Collection[int],
) -> Devices:
    """This rank's devices. The ranks of a host take its GPUs in turn. Every rank calls it.

    Raises ValueError on rank 0, in one line, and SystemExit on all others, if ranks compute the same thing on different kinds of
    devices, or share a GPU although `runtime.backend` is nccl.
    """
    local_rank = seat.local_rank if place.local_rank is None else place.local_rank
    trainer, player = (_pick(name, local_rank) for name in (config.device, config.player_device or config.device))
    used = {_TRAINS: trainer} if place.rank in trainers else {}
    used |= {_PLAYS: player} if place.rank in players else {}
    for device in used.values():
        if device.type == "cuda":
            _fix_cuda(device)
    kinds = [int(used[role].type == "cuda") if role in used else -1 for role in (_TRAINS, _PLAYS)]
    gpu = number_of(_unique_name(trainer)) if kinds[0] == 1 else -1
    everybody = group.gather(torch.tensor([[*kinds, gpu]]), "start")
    for column, name in enumerate((_TRAINS, _PLAYS)):
        if set(everybody[:, column].tolist()) >= {0, 1}:
            refuse(place, f"runtime.{name} is 'auto': some hosts have a CUDA device and some have not; say cpu or cuda")
    gpus = [number for number in everybody[:, 2].tolist() if number >= 0]
    own_gpus = bool(gpus) and len(set(gpus)) == len(gpus)
    if config.backend == "nccl" and not own_gpus:
        refuse(place, "runtime.backend is 'nccl': ranks share a GPU, and it needs one for each; use auto or gloo")
    return Devices(trainer, player, own_gpus)


def refuse(place: RankInfo, line: str) -> NoReturn:
    """Ends all ranks, which have found the same: rank 0 raises ValueError with the line for the user, the others SystemExit."""
    if place.rank:
        end_unheard()
    raise ValueError(line)


def _pick(name: str, local_rank: int) -> torch.device:
    if name != "cuda":
        return torch.device(name)
    return torch.device("cuda", local_rank % max(1, torch.cuda.device_count()))


def _unique_name(device: torch.device) -> str:
    """The GPU itself: where a launcher shows each rank another one, all are called cuda:0."""
    return str(torch.cuda.get_device_properties(device).uuid)


def _fix_cuda(device: torch.device) -> None:
    """The same bits each time: cuBLAS and some operations choose faster ways that differ from call to call otherwise."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_deterministic_debug_mode(
        "warn"
    )  # as `use_deterministic_algorithms`, which imports the whole compiler: seconds
    torch.cuda.set_device(device)
