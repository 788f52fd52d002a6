"""Lightning Fabric for devices, precision and ranks.

Fabric is made in processes that exist already and have met already: it finds torch.distributed initialized and goes on from
there. `Fabric.launch` is for scripts that Fabric itself starts, so it is not called, under `fabric run` either.
"""

import logging
import os
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep.group.group import Clock, Group, RankLost
from lockstep.group.network import NetworkGroup
from lockstep.group.solo import Solo
from lockstep.group.wire import Wire
from lockstep.runtime.devices import Devices
from lockstep.runtime.hosts import HostSlot
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.runtime import Runtime, torch_autocast
from lockstep.runtime.world import World


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Fabric, when it is imported, changes how all warnings look. It also reads the options of `fabric run`, which have been
    compared with the config already, and would take them for those of a script that it may rule itself.
    """
    options = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("LT_")}
    look = warnings.formatwarning
    try:
        with warnings.catch_warnings():
            yield
    finally:
        warnings.formatwarning = look
        os.environ.update(options)


with _as_it_was():
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.collectives.torch_collective import TorchCollective
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.strategies.single_device import SingleDeviceStrategy
    from lightning_fabric.strategies.strategy import Strategy
logging.getLogger("lightning_fabric").setLevel(logging.WARNING)

if TYPE_CHECKING:
    from lockstep.models.policy import Autocast

__all__ = ["FabricGroup", "FabricRuntime"]

_PRECISION = {"fp32": "32-true", "bf16": "bf16-mixed", "fp64": "64-true"}


class _Ranks(ClusterEnvironment):
    """Our own place, for launchers that Fabric does not know."""

    creates_processes_externally = True
    main_address = "127.0.0.1"
    main_port = 0

    def __init__(self, place: RankInfo, local_rank: int) -> None:
        super().__init__()
        self._place = place
        self._local_rank = local_rank

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._place.size

    def set_world_size(self, size: int) -> None:
        """It is as it is."""

    def global_rank(self) -> int:
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        """It is as it is."""

    def local_rank(self) -> int:
        return self._local_rank

    def node_rank(self) -> int:
        return 0


def _strategy(place: RankInfo, seat: HostSlot, device: torch.device, **options: object) -> Strategy:
    """Fabric's own detection where torchrun, or `fabric run`, started the ranks; else they are where our `place` says."""
    if place.size == 1:
        return SingleDeviceStrategy(device)
    found = TorchElasticEnvironment() if TorchElasticEnvironment.detect() else _Ranks(place, seat.local_rank)
    # Fabric takes the device at the rank's number on its host: the list has this rank's device wherever that may point
    devices = [device] * (max(seat.local_rank, found.local_rank()) + 1)
    return DDPStrategy(parallel_devices=devices, cluster_environment=found, **options)  # type: ignore[arg-type]


class FabricRuntime(Runtime):
    """Fabric decides how networks compute, wraps what is replicated, and moves the rows of a `FabricGroup`."""

    def __init__(self, world: World, group: Group, devices: Devices, seat: HostSlot) -> None:
        super().__init__(world, group, devices, seat)
        place, config = world.place, world.config
        if place.size > 1:
            world.meet()  # or Fabric would look for the others in its own way
        with _as_it_was():
            self._fabric = Fabric(
                accelerator=self.device.type,
                devices=1,  # how many is the strategy's business
                strategy=_strategy(place, seat, self.device),
                precision=_PRECISION[config.precision],  # type: ignore[arg-type]
                plugins=[_Ranks(place, seat.local_rank)] if place.size == 1 else None,
            )
            self._fabric.strategy.setup_environment()
        assert (self._fabric.global_rank, self._fabric.world_size) == (place.rank, place.size)
        if isinstance(group, FabricGroup):
            group.travel_by(TorchCollective())

    def autocast(self, device: torch.device) -> "Autocast":
        """See `Runtime.autocast`."""
        if device.type != self.device.type:  # Fabric knows one
            return torch_autocast(self._world.config, device)
        return self._fabric.autocast

    def _wrap(self, module: nn.Module, process_group: dist.ProcessGroup) -> nn.Module:
        with _as_it_was():
            strategy = _strategy(self._world.place, self._seat, self.device, process_group=process_group)
            return strategy.setup_module(module)


class FabricGroup(NetworkGroup):
    """Its rows travel by Fabric's collectives. Who has come is told by messages, and so is what goes from one rank to another."""

    _collective: TorchCollective | None = None

    def travel_by(self, collective: TorchCollective) -> None:
        """From now on. The first exchanges, in which ranks agree on devices, come before there can be a Fabric."""
        self._collective = collective

    def _move(self, rows: Tensor, counts: Sequence[int], phase: str) -> Tensor:
        if self._collective is None:
            return super()._move(rows, counts, phase)
        self._meet(phase)
        begun = perf_counter()
        most = max(counts)  # collectives want as many rows of everybody
        padded = rows.new_zeros(most, rows.shape[1])
        padded[: len(rows)] = rows
        everybody = rows.new_empty(self.size, *padded.shape)
        try:
            self._collective.all_gather([*everybody.view(torch.uint8)], padded.view(torch.uint8))
        except RuntimeError as error:
            peer = f"a peer of rank {self.rank} on host {socket.gethostname()}"
            raise RankLost(peer, phase, str(error).strip().partition("\n")[0]) from error
        if min(counts) < most:
            everybody = torch.cat([share[:count] for share, count in zip(everybody, counts, strict=True)])
        self.clock.moved += perf_counter() - begun
        return everybody

    _move_devices = _move

    def _part(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        if self._collective is None or len(members) == 1:
            return super()._part(members, counts)
        collective = TorchCollective().create_group(ranks=list(members))  # every rank makes it
        if self.rank in members:
            return _Part(collective, self._wire, members, counts, self.clock)
        self._wire.tags(2)  # those that the members take
        return Solo((), self.clock)


class _Part(FabricGroup):
    """Some of the world's ranks."""

    def __init__(
        self, collective: TorchCollective, wire: Wire, members: Sequence[int], counts: Sequence[int], clock: Clock
    ) -> None:
        self._join(wire, tuple(members), counts, clock)
        self.travel_by(collective)

    def close(self) -> None:
        """The connections are the world's."""
