"""Runtime of one rank: its group, its devices and its precision."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from types import TracebackType

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lockstep.group.group import Group
from lockstep.models.policy import Autocast
from lockstep.runtime.devices import Devices
from lockstep.runtime.hosts import HostSlot
from lockstep.runtime.settings import RuntimeConfig
from lockstep.runtime.world import World

__all__ = ["Runtime", "TorchRuntime", "torch_autocast"]


class Runtime(ABC):
    """One rank's group, devices and precision.

    As a context manager, it calls `close` at the end; after an exception without waiting for the other ranks.
    """

    def __init__(self, world: World, group: Group, devices: Devices, host_slot: HostSlot) -> None:
        self._world = world
        self._host_slot = host_slot
        self._own_gpus = devices.own_gpus
        self.group = group
        """Group of all ranks."""
        self.device = devices.trainer
        self.player_device = devices.player
        self.cores = host_slot.cores
        """Number of cores for work that may use several without changing bits."""
        self._unbound: set[int] | None = None

    def pin_to_core(self) -> None:
        """Bind this thread to a core of its own until `close`, if the host has exactly as many cores as ranks.

        Otherwise the kernel may run two ranks on one core, and a process that only uses idle time (SCHED_IDLE), such as that of evaluations, on
        another one for up to a tenth of a second: a rank that waits hardly ever sleeps, so it is rarely moved. With more cores than ranks, nothing
        is bound: other runs may be bound to the same cores.
        """
        if self._host_slot.own_core is not None and hasattr(os, "sched_setaffinity"):
            self._unbound = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {self._host_slot.own_core})
            self.group.avoid_long_yields()

    @abstractmethod
    def autocast(self, device: torch.device) -> Autocast:
        """Return a function that creates the context in which networks compute on `device`."""

    def replicate(self, module: nn.Module, members: Sequence[int]) -> nn.Module:
        """Wrap `module`, which is on `device`, in a DistributedDataParallel that averages gradients over the ranks `members`.

        Every rank calls it, in the same order. Return `module` unchanged on ranks that are not members, and if there is
        only one member.
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

    def close(self, failed: bool = False, error: object = None) -> None:
        """Leave the other ranks: together with them at the end of training, or alone after a failure, which `error` is."""
        if self._unbound is not None:
            os.sched_setaffinity(0, self._unbound)
        if not failed:
            self.group.close()
        self._world.close(failed, error)

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.close(kind is not None, error)


def torch_autocast(config: RuntimeConfig, device: torch.device) -> Autocast:
    """Return a function that creates PyTorch's autocast context for bf16, and a null context for other precisions."""
    return partial(torch.autocast, device.type, torch.bfloat16) if config.precision == "bf16" else nullcontext


class TorchRuntime(Runtime):
    """Runtime that uses PyTorch alone."""

    def autocast(self, device: torch.device) -> Autocast:
        """See `Runtime.autocast`."""
        return torch_autocast(self._world.config, device)

    def _wrap(self, module: nn.Module, process_group: dist.ProcessGroup) -> nn.Module:
        devices = None if self.device.type == "cpu" else [self.device]
        return DistributedDataParallel(module, device_ids=devices, process_group=process_group)
