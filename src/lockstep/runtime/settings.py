"""The `runtime` section of the config."""

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["RuntimeConfig"]

_ADDRESS = re.compile(r"env://|file:///.*[^/]|tcp://[^/\s]+:\d{1,5}")
_DEVICE = re.compile(r"auto|cpu|cuda|cuda:\d{1,3}")


@dataclass(frozen=True)
class RuntimeConfig:
    """Processes, devices and arithmetic."""

    kind: Literal["torch", "fabric"] = "torch"
    """What brings devices, precision and ranks together. `torch`: PyTorch itself; `fabric`: Lightning Fabric. The bits are the
    same."""
    device: str = "auto"
    """Where trainers compute: `cpu`, `cuda` (the ranks of a host take its GPUs in turn) or `cuda:N`. `auto`: `cuda` if this host has
    a GPU, else `cpu`; decided when the run is created. Part of what is computed."""
    player_device: str | None = None
    """Where players compute actions and values, with the same words. None: as `device`. Small networks often act faster on the
    CPU. Part of what is computed."""
    precision: Literal["fp32", "bf16", "fp64"] = "fp32"
    """Arithmetic of the networks. `bf16`: their matrix products in bfloat16 (autocast), all else, weights too, in fp32. `fp64` is
    for checking against a reference. Part of what is computed."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether the arithmetic of the update is compiled for this machine's CPU: 2 to 7 times faster for small networks, after about 20 s the
    first time (then from a cache). Needs a C++ compiler. `auto`: on for runs of at least 5,000 gradient steps on the CPU in `fp32` or
    `fp64` without `ddp`; decided when the run is created. Part of what is computed: it rounds differently."""
    backend: Literal["auto", "shared", "gloo", "nccl", "mpi"] = "auto"
    """How ranks exchange tensors. `shared`: memory of one host; the others are torch.distributed's, `nccl` for one GPU per rank,
    `mpi` where PyTorch was built with it. `auto`: shared memory where all ranks are on one host, else gloo; with `kind` fabric
    Fabric's collectives. The bits are the same."""
    rendezvous: str | None = None
    """Where ranks meet that a launcher started: `env://` (MASTER_ADDR and MASTER_PORT), `file:///PATH` on a file system that all
    hosts share, or `tcp://HOST:PORT` of rank 0. None: as the launcher says, and on one host a file in the temporary folder.
    Ranks of `--ranks` need none."""
    threads: int = 1
    """Threads per trainer inside PyTorch and NumPy. Part of what is computed: sums may round differently with another number."""
    player_threads: int | None = None
    """The same for a rank that only plays. None: as `threads`."""
    timeout: float = 60.0
    """Seconds that a rank waits for the others before the run stops; ten times that where players wait for trainers or trainers
    for players, who may be busy with a whole update or rollout."""

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
