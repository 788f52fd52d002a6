"""What can't work here, found before anything starts. Importing this does not import PyTorch.

`fabric run` leaves its options in LT_ACCELERATOR, LT_STRATEGY and LT_PRECISION.
"""

import os
import shutil
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RuntimeConfig

__all__ = ["check_runtime", "cuda_devices", "find_compiler", "resolve_devices", "shares_memory"]

_SIGNS_OF_GPUS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd", "/proc/driver/nvidia/version")
_PRECISIONS = {"32-true": "fp32", "32": "fp32", "bf16-mixed": "bf16", "bf16": "bf16", "64-true": "fp64", "64": "fp64"}


def cuda_devices() -> int:
    """Number of CUDA devices that PyTorch can use here. Where there is no trace of one, PyTorch is not imported to ask."""
    if not any(Path(path).exists() for path in _SIGNS_OF_GPUS):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def find_compiler() -> str | None:
    """The C++ compiler that there is: `CXX`, else g++ (clang++ on macOS)."""
    return shutil.which(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++"))


def resolve_devices(config: RuntimeConfig) -> RuntimeConfig:
    """`config` without `auto` devices: `cuda` where there is a CUDA device that `fabric run` did not rule out, else `cpu`."""
    if "auto" not in (config.device, config.player_device):
        return config
    found = "cuda" if _asked_of_fabric().get("ACCELERATOR") != "cpu" and cuda_devices() else "cpu"
    player = found if config.player_device == "auto" else config.player_device
    return replace(config, device=found if config.device == "auto" else config.device, player_device=player)


def shares_memory(config: RuntimeConfig) -> bool:
    """Whether ranks of one host exchange tensors through memory that they share."""
    return config.backend == "shared" or (config.backend == "auto" and config.kind == "torch")


def check_runtime(
    config: RuntimeConfig, place: RankInfo | None, trainers: Collection[int], players: Collection[int]
) -> None:
    """Raises ValueError, in one line, for what `config` wants and this host or launcher can't give.

    Args:
        config: With its devices resolved.
        place: This process's; None where our own launch is about to start the ranks.
        trainers: The ranks that train.
        players: The ranks that play.
    """
    if config.kind == "fabric" and find_spec("lightning_fabric") is None:
        raise ValueError("runtime.kind is 'fabric': it is not installed; pip install 'lockstep-rl[fabric]'")
    if place is None or place.rank in trainers or config.player_device is None:
        _check_cuda("device", config.device)
    if config.player_device is not None and (place is None or place.rank in players):
        _check_cuda("player_device", config.player_device)
    _check_fabric_run(config)
    if config.backend == "shared" and place is not None and place.local_size and not place.on_one_host:
        raise ValueError("runtime.backend is 'shared': the ranks are on several hosts; use auto, gloo or nccl")
    if config.backend == "nccl":
        _check_nccl(config, place, trainers)
    if config.backend == "mpi":
        _check_mpi(config, place, len({*trainers, *players}))


def _check_cuda(name: str, device: str) -> None:
    if device == "cpu":
        return
    count = cuda_devices()
    if not count:
        raise ValueError(f"runtime.{name} is {device!r}: there is no CUDA device here; use cpu or auto")
    if device != "cuda" and int(device.removeprefix("cuda:")) >= count:
        known = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise ValueError(f"runtime.{name} is {device!r}: this host has {known}")


def _check_nccl(config: RuntimeConfig, place: RankInfo | None, trainers: Collection[int]) -> None:
    if place is not None and place.rank not in trainers:
        return
    count = cuda_devices()
    if not count:
        raise ValueError("runtime.backend is 'nccl': there is no CUDA device here; use gloo or auto")
    if config.device == "cpu":
        raise ValueError(
            "runtime.backend is 'nccl': it moves tensors between GPUs, but runtime.device is 'cpu'; use gloo or auto"
        )
    # a launcher may show every rank a GPU of its own: under one this is seen when the ranks have met
    shown = 1 if config.device != "cuda" else count
    if place is None and len(trainers) > shown:
        raise ValueError(
            f"runtime.backend is 'nccl': {len(trainers)} ranks would share {shown} GPU{'s' * (shown > 1)}, and it needs one for "
            "each; use auto or gloo"
        )
    import torch.distributed as dist

    if not dist.is_nccl_available():
        raise ValueError("runtime.backend is 'nccl': this PyTorch is built without it; use auto or gloo")


def _check_mpi(config: RuntimeConfig, place: RankInfo | None, ranks: int) -> None:
    import torch.distributed as dist

    if not dist.is_mpi_available():
        raise ValueError("runtime.backend is 'mpi': this PyTorch was built without it; use gloo or auto")
    if config.kind == "fabric":
        raise ValueError("runtime.backend is 'mpi': runtime.kind 'fabric' has no such collectives; use gloo or auto")
    if ranks > 1 and (place is None or place.launcher not in ("mpirun", "mpiexec", "srun")):
        raise ValueError("runtime.backend is 'mpi': its ranks must be started by mpirun, mpiexec or srun")


def _asked_of_fabric() -> Mapping[str, str]:
    """Options of `fabric run`, by name, if that started this process."""
    if os.environ.get("LT_CLI_USED", "0") != "1":
        return {}
    names = ("ACCELERATOR", "STRATEGY", "PRECISION")
    return {name: os.environ[f"LT_{name}"] for name in names if f"LT_{name}" in os.environ}


def _check_fabric_run(config: RuntimeConfig) -> None:
    """What a run computes is said by its config alone, so `fabric run` may only agree with it."""
    asked = _asked_of_fabric()
    accelerator, strategy, precision = (asked.get(name) for name in ("ACCELERATOR", "STRATEGY", "PRECISION"))
    kind = config.device.partition(":")[0]
    if accelerator not in (None, "auto", kind, *["gpu"] * (kind == "cuda")):
        raise ValueError(f"fabric run --accelerator is {accelerator!r}, but runtime.device is {config.device!r}")
    if strategy not in (None, "auto", "ddp"):
        raise ValueError(f"fabric run --strategy is {strategy!r}: leave it out, runtime and plan decide it")
    if precision is not None and _PRECISIONS.get(precision) != config.precision:
        raise ValueError(
            f"fabric run --precision is {precision!r}, but runtime.precision is {config.precision!r}: give the same, or only the latter"
        )
