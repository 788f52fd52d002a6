"""Choice of the devices that a rank computes on, and the check that the devices of all ranks are compatible."""

import os
import warnings
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch.utils import deterministic

from lockstep.group.group import Group
from lockstep.run.stop import exit_silently
from lockstep.runtime.hosts import HostSlot
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RuntimeConfig

__all__ = ["Devices", "choose_devices", "fail_on_all_ranks"]

_TRAINS, _PLAYS = "device", "player_device"
"""Roles of a rank, named by the field of `runtime` that has the role's device."""


@dataclass(frozen=True)
class Devices:
    """Devices of one rank, as a trainer and as a player."""

    trainer: torch.device
    player: torch.device
    own_gpus: bool
    """True if every trainer has a GPU to itself, as NCCL requires."""


def choose_devices(
    rank_info: RankInfo,
    config: RuntimeConfig,
    group: Group,
    host_slot: HostSlot,
    trainers: Collection[int],
    players: Collection[int],
) -> Devices:
    """Choose this rank's devices. GPUs are assigned to the ranks of a host round-robin. Every rank calls it.

    Raises ValueError on rank 0 and SystemExit on all others if ranks of one role have different kinds of devices, or if
    trainers share a GPU although `runtime.backend` is nccl.
    """
    local_rank = host_slot.local_rank if rank_info.local_rank is None else rank_info.local_rank
    trainer, player = (_device(name, local_rank) for name in (config.device, config.player_device or config.device))
    used = {_TRAINS: trainer} if rank_info.rank in trainers else {}
    used |= {_PLAYS: player} if rank_info.rank in players else {}
    for device in used.values():
        if device.type == "cuda":
            _set_up_cuda(device)
    kinds = [int(used[role].type == "cuda") if role in used else -1 for role in (_TRAINS, _PLAYS)]
    gpu_id = _gpu_id(trainer) if kinds[0] == 1 else -1
    rows = group.gather(torch.tensor([[*kinds, gpu_id]]), "start")
    for column, name in enumerate((_TRAINS, _PLAYS)):
        if set(rows[:, column].tolist()) >= {0, 1}:
            fail_on_all_ranks(
                rank_info, f"runtime.{name} is 'auto': some hosts have a CUDA device and some do not; use cpu or cuda"
            )
    gpu_ids = [gpu for gpu in rows[:, 2].tolist() if gpu >= 0]
    own_gpus = bool(gpu_ids) and len(set(gpu_ids)) == len(gpu_ids)
    if config.backend == "nccl" and not own_gpus:
        fail_on_all_ranks(
            rank_info,
            "runtime.backend is 'nccl': ranks share a GPU, but NCCL needs one for each rank; use auto or gloo",
        )
    return Devices(trainer, player, own_gpus)


def fail_on_all_ranks(rank_info: RankInfo, message: str) -> NoReturn:
    """Raise ValueError with the message for the user on rank 0, and SystemExit on all other ranks. Every rank calls it."""
    if rank_info.rank:
        exit_silently()
    raise ValueError(message)


def _device(name: str, local_rank: int) -> torch.device:
    if name != "cuda":
        return torch.device(name)
    return torch.device("cuda", local_rank % max(1, torch.cuda.device_count()))


def _gpu_id(device: torch.device) -> int:
    """Return a checksum of the GPU's UUID.

    The index does not identify a GPU: a launcher may make a different GPU visible to each rank, always as cuda:0.
    """
    return zlib.crc32(str(torch.cuda.get_device_properties(device).uuid).encode())


def _set_up_cuda(device: torch.device) -> None:
    """Select the device and make its results reproducible.

    By default cuBLAS and some operations use algorithms whose results differ in their bits between calls.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # has the effect of `use_deterministic_algorithms`, which imports the whole compiler and so takes seconds
    torch.set_deterministic_debug_mode("warn")
    # it would fill each new tensor with NaN before its values are computed, with a GPU kernel of its own
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # a recurrent layer copies its weights, which are few, to the layout of cuDNN in each call
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk of memory")
    torch.cuda.set_device(device)
