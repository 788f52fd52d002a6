"""What carries one rank: its group, its devices, its arithmetic."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lockstep.group.group import Group
from lockstep.group.network import share_host
from lockstep.group.shared import SharedMemoryGroup
from lockstep.group.solo import Solo
from lockstep.runtime.checks import shares_memory
from lockstep.runtime.devices import Devices, choose_devices, refuse
from lockstep.runtime.hosts import HostSlot, take_seat
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RuntimeConfig
from lockstep.runtime.world import World

if TYPE_CHECKING:
    from lockstep.models.policy import Autocast

__all__ = ["Runtime", "TorchRuntime", "join", "torch_autocast"]


class Runtime(ABC):
    """A rank's own. Used in a `with` statement, that leaves the other ranks in order."""

    def __init__(self, world: World, group: Group, devices: Devices, seat: HostSlot) -> None:
        self._world = world
        self._seat = seat
        self._own_gpus = devices.own_gpus
        self.group = group
        self.device = devices.trainer
        """Where this rank computes as a trainer."""
        self.player_device = devices.player
        """Where it computes as a player."""
        self.cores = seat.cores
        """Cores for what may use several without changing bits."""

    @abstractmethod
    def autocast(self, device: torch.device) -> "Autocast":
        """Gives the context in which networks compute on `device`."""

    def replicate(self, module: nn.Module, members: Sequence[int]) -> nn.Module:
        """`module`, which is on `device`, in a DistributedDataParallel whose gradients are averaged over the ranks `members`.

        Every rank calls it, in the same order; a rank that is no member, or the only one, gets the module back as it is.
        """
        if len(members) == 1:
            return module
        backend = self._world.config.backend
        if backend not in ("gloo", "mpi"):
            backend = "nccl" if self._own_gpus and dist.is_nccl_available() else "gloo"
        process_group = self._world.subgroup(members, backend)
        return module if process_group is None else self._wrap(module, process_group)

    @abstractmethod
    def _wrap(self, module: nn.Module, process_group: dist.ProcessGroup) -> nn.Module: ...

    def close(self, failed: bool = False) -> None:
        """Leaves the other ranks: all together at the end of their work, or alone, after a fault."""
        if not failed:
            self.group.close()
        self._world.close(failed)

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.close(failed=kind is not None)


def join(
    place: RankInfo,
    config: RuntimeConfig,
    trainers: Collection[int] | None = None,
    players: Collection[int] | None = None,
) -> Runtime:
    """Meets the other ranks.

    Args:
        place: This rank's, with its meeting.
        config: Checked by `check_runtime`, with its devices resolved.
        trainers: The ranks that train; None: all.
        players: The ranks that play; None: all.

    Raises RankLost if they do not come, and for what only shows when they have met, ValueError on rank 0 and SystemExit on all
    others.
    """
    everybody = range(place.size)
    world = World(place, config)
    try:
        return _join(world, everybody if trainers is None else trainers, everybody if players is None else players)
    except BaseException:
        world.close(failed=True)
        raise


def _join(world: World, trainers: Collection[int], players: Collection[int]) -> Runtime:
    place, config = world.place, world.config
    group = _group_of(world)
    seat = take_seat(group)
    group.have_cores(seat.host_cores)
    devices = choose_devices(place, config, group, seat, trainers, players)
    if config.kind == "fabric":
        from lockstep.runtime.fabric import FabricRuntime

        return FabricRuntime(world, group, devices, seat)
    return TorchRuntime(world, group, devices, seat)


def _group_of(world: World) -> Group:
    """The fastest group that the backend allows."""
    place, config = world.place, world.config
    if place.size == 1:
        return Solo()
    if place.memory is not None:
        return SharedMemoryGroup(place.memory, place.rank, place.size, config.timeout)
    network = world.meet()
    if not shares_memory(config):
        return network
    group = share_host(network, config.timeout)
    if group is network and config.backend == "shared":
        refuse(place, "runtime.backend is 'shared': the ranks can't open each other's memory; use auto or gloo")
    return group


def torch_autocast(config: RuntimeConfig, device: torch.device) -> "Autocast":
    """PyTorch's own context for `runtime.precision`."""
    return partial(torch.autocast, device.type, torch.bfloat16) if config.precision == "bf16" else nullcontext


class TorchRuntime(Runtime):
    """PyTorch itself."""

    def autocast(self, device: torch.device) -> "Autocast":
        """See `Runtime.autocast`."""
        return torch_autocast(self._world.config, device)

    def _wrap(self, module: nn.Module, process_group: dist.ProcessGroup) -> nn.Module:
        devices = None if self.device.type == "cpu" else [self.device]
        return DistributedDataParallel(module, device_ids=devices, process_group=process_group)
