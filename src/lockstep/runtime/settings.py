"""The `runtime` section of the config."""

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["RuntimeConfig"]

_ADDRESS = re.compile(r"env://|file:///.*[^/]|tcp://[^/\s]+:\d{1,5}")


@dataclass(frozen=True)
class RuntimeConfig:
    """Processes and arithmetic."""

    precision: Literal["fp32", "fp64"] = "fp32"
    """Floating-point type of weights and rollouts. `fp64` is for checking against a reference."""
    backend: Literal["auto", "shared", "gloo"] = "auto"
    """How ranks exchange tensors. `shared`: memory of one host; `gloo`: torch.distributed; `auto`: shared memory where all
    ranks are on one host. The bits are the same."""
    rendezvous: str | None = None
    """Where ranks meet that a launcher started: `env://` (MASTER_ADDR and MASTER_PORT), `file:///PATH` on a file system that all
    hosts share, or `tcp://HOST:PORT` of rank 0. None: as the launcher says, and on one host a file in the temporary folder.
    Ranks of `--ranks` need none."""
    threads: int = 1
    """Threads per rank inside PyTorch and NumPy. Part of what is computed: sums may round differently with another number."""
    timeout: float = 60.0
    """Seconds that a rank waits for the others before the run stops."""

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"runtime.threads is {self.threads}: it must be at least 1")
        if self.rendezvous is not None and not _ADDRESS.fullmatch(self.rendezvous):
            raise ValueError(
                f"runtime.rendezvous is {self.rendezvous!r}: it must be env://, file:///PATH or tcp://HOST:PORT"
            )
        if not 0 < self.timeout <= 1e6:
            raise ValueError(f"runtime.timeout is {self.timeout}: it must be above 0 and at most 1e6 seconds")
