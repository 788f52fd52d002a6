"""Checks that this host and launcher support a config, before anything starts.

This module imports PyTorch only in functions that need it.
`fabric run` passes its options in LT_ACCELERATOR, LT_STRATEGY and LT_PRECISION.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from lockstep.processes.portable import portable_problem
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RuntimeConfig

__all__ = ["check_runtime", "cuda_devices", "resolve_devices", "shares_memory"]

_SIGNS_OF_GPUS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd", "/proc/driver/nvidia/version")
_PRECISIONS = {"32-true": "fp32", "32": "fp32", "bf16-mixed": "bf16", "bf16": "bf16", "64-true": "fp64", "64": "fp64"}
"""Values of `runtime.precision` by the names that `fabric run` uses."""


def cuda_devices() -> int:
    """Return the number of CUDA devices that PyTorch can use here. If no GPU driver is found, PyTorch is not imported."""
    if not any(Path(path).exists() for path in _SIGNS_OF_GPUS):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def resolve_devices(config: RuntimeConfig) -> RuntimeConfig:
    """Replace `auto` devices by `cuda` if there is a CUDA device, and neither `bits` nor `fabric run` selects the CPU, else by `cpu`."""
    if "auto" not in (config.device, config.player_device):
        return config
    cpu = config.bits == "portable" or _fabric_run_options().get("ACCELERATOR") == "cpu"
    auto = "cuda" if not cpu and cuda_devices() else "cpu"
    player = auto if config.player_device == "auto" else config.player_device
    return replace(config, device=auto if config.device == "auto" else config.device, player_device=player)


def shares_memory(config: RuntimeConfig) -> bool:
    """Return True if ranks of one host exchange tensors through shared memory."""
    return config.backend == "shared" or (config.backend == "auto" and config.kind == "torch")


def check_runtime(
    config: RuntimeConfig, rank_info: RankInfo | None, trainers: Collection[int], players: Collection[int]
) -> None:
    """Raise ValueError, in one line, for a field of a config with resolved devices that this host and launcher do not support.

    `rank_info` is None if lockstep's own launcher is about to start the ranks.
    """
    if config.kind == "fabric" and find_spec("lightning_fabric") is None:
        raise ValueError(
            "runtime.kind is 'fabric': Lightning Fabric is not installed; pip install 'lockstep-rl[fabric]'"
        )
    if rank_info is None or rank_info.rank in trainers or config.player_device is None:
        _check_cuda("device", config.device)
    if config.player_device is not None and (rank_info is None or rank_info.rank in players):
        _check_cuda("player_device", config.player_device)
    _check_bits(config)
    _check_fabric_run(config)
    if config.backend == "shared" and rank_info is not None and rank_info.local_size and not rank_info.on_one_host:
        raise ValueError("runtime.backend is 'shared': the ranks are on several hosts; use auto, gloo or nccl")
    if config.backend == "nccl":
        _check_nccl(config, rank_info, trainers)
    if config.backend == "mpi":
        _check_mpi(config, rank_info, len({*trainers, *players}))


def _check_cuda(name: str, device: str) -> None:
    if device == "cpu":
        return
    count = cuda_devices()
    if not count:
        raise ValueError(f"runtime.{name} is {device!r}: this host has no CUDA device; use cpu or auto")
    if device != "cuda" and int(device.removeprefix("cuda:")) >= count:
        available = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise ValueError(f"runtime.{name} is {device!r}: this host has {available}")


def _check_bits(config: RuntimeConfig) -> None:
    if config.bits == "fast":
        return
    for name, device in (("device", config.device), ("player_device", config.player_device)):
        if device not in (None, "cpu"):
            raise ValueError(f"runtime.bits is 'portable': runtime.{name} is {device!r}; use cpu, or runtime.bits fast")
    if config.precision == "bf16":
        raise ValueError(
            "runtime.bits is 'portable': runtime.precision is 'bf16'; use fp32 or fp64, or runtime.bits fast"
        )
    problem = portable_problem()
    if problem is not None:
        raise ValueError(f"runtime.bits is 'portable': {problem}; use fast")


def _check_nccl(config: RuntimeConfig, rank_info: RankInfo | None, trainers: Collection[int]) -> None:
    if rank_info is not None and rank_info.rank not in trainers:
        return
    count = cuda_devices()
    if not count:
        raise ValueError("runtime.backend is 'nccl': this host has no CUDA device; use gloo or auto")
    if config.device == "cpu":
        raise ValueError(
            "runtime.backend is 'nccl': NCCL moves tensors between GPUs, but runtime.device is 'cpu'; use gloo or auto"
        )
    # a launcher may give each rank its own visible GPU: `choose_devices` checks this after the ranks have connected
    visible = 1 if config.device != "cuda" else count
    if rank_info is None and len(trainers) > visible:
        raise ValueError(
            f"runtime.backend is 'nccl': {len(trainers)} ranks would share {visible} GPU{'s' * (visible > 1)}, but NCCL needs "
            "one for each rank; use auto or gloo"
        )
    import torch.distributed as dist

    if not dist.is_nccl_available():
        raise ValueError("runtime.backend is 'nccl': this PyTorch was built without NCCL; use auto or gloo")


def _check_mpi(config: RuntimeConfig, rank_info: RankInfo | None, ranks: int) -> None:
    import torch.distributed as dist

    if not dist.is_mpi_available():
        raise ValueError("runtime.backend is 'mpi': this PyTorch was built without MPI; use gloo or auto")
    if config.kind == "fabric":
        raise ValueError("runtime.backend is 'mpi': runtime.kind 'fabric' has no MPI collectives; use gloo or auto")
    if ranks > 1 and (rank_info is None or rank_info.launcher not in ("mpirun", "mpiexec", "srun")):
        raise ValueError("runtime.backend is 'mpi': the ranks must be started by mpirun, mpiexec or srun")


def _fabric_run_options() -> Mapping[str, str]:
    """Return the options of `fabric run` by name, if it started this process; else nothing."""
    if os.environ.get("LT_CLI_USED", "0") != "1":
        return {}
    names = ("ACCELERATOR", "STRATEGY", "PRECISION")
    return {name: os.environ[f"LT_{name}"] for name in names if f"LT_{name}" in os.environ}


def _check_fabric_run(config: RuntimeConfig) -> None:
    """Check that the options of `fabric run` agree with the config, which alone decides what a run computes."""
    options = _fabric_run_options()
    accelerator, strategy, precision = (options.get(name) for name in ("ACCELERATOR", "STRATEGY", "PRECISION"))
    kind = config.device.partition(":")[0]
    if accelerator not in (None, "auto", kind, *["gpu"] * (kind == "cuda")):
        raise ValueError(
            f"fabric run --accelerator is {accelerator!r}, but runtime.device is {config.device!r}: set both to the same"
        )
    if strategy not in (None, "auto", "ddp"):
        raise ValueError(f"fabric run --strategy is {strategy!r}: omit it, the sections runtime and plan decide it")
    if precision is not None and _PRECISIONS.get(precision) != config.precision:
        raise ValueError(
            f"fabric run --precision is {precision!r}, but runtime.precision is {config.precision!r}: set both to the same, or "
            "only the latter"
        )
