"""The `runtime` section of the config."""

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["RESTARTS", "RuntimeConfig"]

RESTARTS = 3
"""Default number of restarts after faults, within an hour."""

_ADDRESS = re.compile(r"env://|file:///.*[^/]|tcp://[^/\s]+:\d{1,5}")
_DEVICE = re.compile(r"auto|cpu|cuda|cuda:\d{1,3}")


@dataclass(frozen=True)
class RuntimeConfig:
    """Settings of processes, devices and arithmetic."""

    kind: Literal["torch", "fabric"] = "torch"
    """Library that sets up devices, precision and ranks. `torch`: PyTorch alone; `fabric`: Lightning Fabric. Both give the same
    bits."""
    device: str = "auto"
    """Device of trainers: `cpu`, `cuda` (the ranks of a host use its GPUs in turn) or `cuda:N`. `auto`: `cuda` if this host has
    a GPU, else `cpu`; decided when the run is created. Changes results."""
    player_device: str | None = None
    """Device on which players compute actions and values, with the same choices. None: as `device`. Small networks often act
    faster on the CPU. Changes results."""
    precision: Literal["fp32", "bf16", "fp64"] = "fp32"
    """Precision of the networks. `bf16`: matrix products in bfloat16 (autocast), everything else, including the weights, in fp32.
    `fp64` is for comparison with a reference. Changes results."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Trace the arithmetic of acting and of the update once, and run it as kernels of lockstep's interpreter on the CPU: several times
    faster for small networks. The interpreter is part of wheels for Linux on x86-64; elsewhere it is built once with the C++ compiler. A new run
    without it runs operation by operation, with a warning. `auto`: on if the device is the CPU, the precision `fp32` or `fp64`, and the
    encoder (`mlp` or `nature`), core, head and distribution of the policy are built in, but with images only if `threads` is 1; decided when the
    run is created. Changes results in the last digits: kernels round differently."""
    bits: Literal["fast", "portable"] = "fast"
    """`portable`: the same bits on every x86-64 processor with AVX2 and FMA, by Intel or AMD, for one set of installed packages. All
    libraries are restricted to the AVX2 instruction set. `fast`: the libraries' own choice; without kernels, bits then depend on the type of
    processor. Portable bits need the CPU, and `fp32` or `fp64`. Changes results, except with kernels."""
    backend: Literal["auto", "shared", "gloo", "nccl", "mpi"] = "auto"
    """Transport of tensors between ranks. `shared`: shared memory of one host. The others are backends of torch.distributed: `nccl`
    needs one GPU per rank, `mpi` needs a PyTorch that was built with MPI. `auto`: shared memory if all ranks are on one host, else gloo;
    with `kind` fabric, Fabric's collectives. All give the same bits."""
    rendezvous: str | None = None
    """Address of the rendezvous of ranks that another launcher started: `env://` (MASTER_ADDR and MASTER_PORT), `file:///PATH` on a
    file system that all hosts share, or `tcp://HOST:PORT` of rank 0. None: the launcher's address, or on one host a file in the
    temporary folder. Not needed with `--ranks`."""
    threads: int = 1
    """Threads per trainer inside PyTorch and NumPy; kernels (`compile`) always use one. Changes results in the last digits: sums may round differently with another number."""
    player_threads: int | None = None
    """Threads per rank that only plays. None: as `threads`."""
    timeout: float = 60.0
    """Seconds without a heartbeat after which a rank is considered to hang: one environment step, one gradient step or one hook may take
    that long. Its stack traces are printed, and the ranks are started again (see `--restarts`). On several hosts, a rank also
    waits this many seconds for another one, and ten times as long for the end of a rollout or update."""

    def __post_init__(self) -> None:
        for name, device in (("device", self.device), ("player_device", self.player_device)):
            if device is not None and not _DEVICE.fullmatch(device):
                raise ValueError(f"runtime.{name} is {device!r}: it must be auto, cpu, cuda or cuda:N")
        if self.rendezvous is not None and not _ADDRESS.fullmatch(self.rendezvous):
            raise ValueError(
                f"runtime.rendezvous is {self.rendezvous!r}: it must be env://, file:///PATH or tcp://HOST:PORT"
            )
        for name, threads in (("threads", self.threads), ("player_threads", self.player_threads)):
            if threads is not None and not 1 <= threads <= 4096:
                raise ValueError(f"runtime.{name} is {threads}: it must be between 1 and 4096")
        if not 0 < self.timeout <= 1e6:
            raise ValueError(f"runtime.timeout is {self.timeout}: it must be above 0 and at most 1e6 seconds")
