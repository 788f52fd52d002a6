"""Lightning Fabric as the runtime: it decides precision, wraps replicated modules and moves the rows of groups.

Fabric is created in ranks that are already connected: it finds torch.distributed initialized and uses it.
`Fabric.launch` is meant for scripts that Fabric itself starts, so it is not called, not even under `fabric run`.
"""

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep.group.group import Clock, Group, RankLost
from lockstep.group.network import NetworkGroup
from lockstep.group.point_to_point import PointToPoint
from lockstep.group.solo import Solo
from lockstep.models.policy import Autocast
from lockstep.processes.heartbeat import waiting
from lockstep.processes.host_name import host_name
from lockstep.runtime.devices import Devices
from lockstep.runtime.hosts import HostSlot
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.runtime import Runtime, torch_autocast
from lockstep.runtime.world import World


@contextmanager
def _isolated() -> Iterator[None]:
    """Keep Fabric from changing this process, and hide the options of `fabric run` from it.

    Importing Fabric changes the format of all warnings. The options have already been compared with the config; Fabric
    would apply them, as in a script that it controls.
    """
    options = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("LT_")}
    format_warning = warnings.formatwarning
    try:
        with warnings.catch_warnings():
            yield
    finally:
        warnings.formatwarning = format_warning
        os.environ.update(options)


with _isolated():
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.collectives.torch_collective import TorchCollective
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.strategies.single_device import SingleDeviceStrategy
    from lightning_fabric.strategies.strategy import Strategy
logging.getLogger("lightning_fabric").setLevel(logging.WARNING)

__all__ = ["FabricGroup", "FabricRuntime"]

_PRECISION = {"fp32": "32-true", "bf16": "bf16-mixed", "fp64": "64-true"}
"""Fabric's names of the values of `runtime.precision`."""


class _RankEnvironment(ClusterEnvironment):
    """Cluster environment made from a `RankInfo`, for launchers that Fabric does not support."""

    creates_processes_externally = True
    main_address = "127.0.0.1"
    main_port = 0

    def __init__(self, rank_info: RankInfo, local_rank: int) -> None:
        super().__init__()
        self._rank_info = rank_info
        self._local_rank = local_rank

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._rank_info.size

    def set_world_size(self, size: int) -> None:
        """Do nothing: the rank is fixed."""

    def global_rank(self) -> int:
        return self._rank_info.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the rank is fixed."""

    def local_rank(self) -> int:
        return self._local_rank

    def node_rank(self) -> int:
        return 0


def _strategy(rank_info: RankInfo, host_slot: HostSlot, device: torch.device, **options: object) -> Strategy:
    """Create Fabric's strategy. It reads the rank from the variables of torchrun or `fabric run`, else from `rank_info`."""
    if rank_info.size == 1:
        return SingleDeviceStrategy(device)
    detected = TorchElasticEnvironment.detect()
    environment = TorchElasticEnvironment() if detected else _RankEnvironment(rank_info, host_slot.local_rank)
    # Fabric selects the device at the index of the local rank: every entry of the list is this rank's device
    devices = [device] * (max(host_slot.local_rank, environment.local_rank()) + 1)
    return DDPStrategy(parallel_devices=devices, cluster_environment=environment, **options)  # type: ignore[arg-type]


class FabricRuntime(Runtime):
    """Runtime in which Fabric decides the precision, wraps replicated modules, and moves the rows of a `FabricGroup`."""

    def __init__(self, world: World, group: Group, devices: Devices, host_slot: HostSlot) -> None:
        super().__init__(world, group, devices, host_slot)
        rank_info, config = world.rank_info, world.config
        if rank_info.size > 1:
            world.connect()  # otherwise Fabric would connect the ranks by itself
        with _isolated():
            self._fabric = Fabric(
                accelerator=self.device.type,
                devices=1,  # the strategy has its own list
                strategy=_strategy(rank_info, host_slot, self.device),
                precision=_PRECISION[config.precision],  # type: ignore[arg-type]
                plugins=[_RankEnvironment(rank_info, host_slot.local_rank)] if rank_info.size == 1 else None,
            )
            self._fabric.strategy.setup_environment()
        assert (self._fabric.global_rank, self._fabric.world_size) == (rank_info.rank, rank_info.size)
        if isinstance(group, FabricGroup):
            group.use_collective(TorchCollective())

    def autocast(self, device: torch.device) -> Autocast:
        """See `Runtime.autocast`."""
        if device.type != self.device.type:  # Fabric supports only one kind of device
            return torch_autocast(self._world.config, device)
        return self._fabric.autocast

    def _wrap(self, module: nn.Module, process_group: dist.ProcessGroup) -> nn.Module:
        with _isolated():
            strategy = _strategy(self._world.rank_info, self._host_slot, self.device, process_group=process_group)
            return strategy.setup_module(module)


class FabricGroup(NetworkGroup):
    """Group that gathers rows with Fabric's collectives. Synchronization and channels use point-to-point messages."""

    _collective: TorchCollective | None = None

    def use_collective(self, collective: TorchCollective) -> None:
        """Gather rows with `collective` from now on. Before, ranks agree on devices, which Fabric needs."""
        self._collective = collective

    def _move(self, rows: Tensor, counts: Sequence[int], phase: str) -> Tensor:
        if self._collective is None:
            return super()._move(rows, counts, phase)
        return self._move_on_devices(rows, counts, phase)

    def reduce(self, own_rows: Tensor, phase: str) -> Tensor:
        """See `Group.reduce`. All rows are gathered."""
        return super().reduce(own_rows, phase) if self._collective is None else Group.reduce(self, own_rows, phase)

    def _gather_bytes(self, all_rows: Tensor, rows: Tensor, phase: str) -> None:
        if self._collective is None:
            return super()._gather_bytes(all_rows, rows, phase)
        try:
            with waiting():
                self._collective.all_gather([*all_rows], rows)
        except RuntimeError as error:
            peer = f"a peer of rank {self.rank} on host {host_name()}"
            raise RankLost(peer, phase, str(error).strip().partition("\n")[0]) from error

    def _make_subgroup(self, members: Sequence[int], counts: Sequence[int]) -> Group:
        if self._collective is None or len(members) == 1:
            return super()._make_subgroup(members, counts)
        collective = TorchCollective().create_group(ranks=list(members))  # every rank must call it
        if self.rank in members:
            return _Subgroup(collective, self._p2p, members, counts, self.clock)
        self._p2p.reserve_tags(2)  # the members' groups reserve them too
        return Solo((), self.clock)


class _Subgroup(FabricGroup):
    """Group of some of the world's ranks."""

    def __init__(
        self,
        collective: TorchCollective,
        p2p: PointToPoint,
        members: Sequence[int],
        counts: Sequence[int],
        clock: Clock,
    ) -> None:
        self._join(p2p, tuple(members), counts, clock)
        self.use_collective(collective)

    def close(self) -> None:
        """Do nothing: the group of all ranks owns the connections."""
