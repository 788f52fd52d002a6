"""One rank of several, started by test_runtime.py: `member.py FOLDER KIND BACKEND PRECISION RANK SIZE MEMORY`.

Joins (MEMORY is a file descriptor, or `-`), uses what a runtime has, and leaves `RANK.npz`. One that hangs says where, and ends.
"""

import faulthandler
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lockstep.models.policy import Policy
from lockstep.models.settings import PolicyConfig
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.runtime import join
from lockstep.runtime.settings import RuntimeConfig

MEMBERS = (0, 2)
COUNTS = (2, 1)


def policy_of(autocast: object) -> Policy:
    return Policy(3, 2, 0, PolicyConfig(hidden=(8,)), torch.Generator().manual_seed(1), torch.float32, autocast)


def batch_of(rank: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 12).view(4, 3) * (rank + 1)


def gradients(policy: nn.Module, module: nn.Module, rank: int) -> np.ndarray:
    policy.zero_grad()
    parameters, values = module(batch_of(rank))
    (parameters.square().sum() + values.sum()).backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]).numpy()


def main(folder: Path, kind: str, backend: str, precision: str, rank: int, size: int, memory: int | None) -> None:
    before = (torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS"), warnings.formatwarning, [*warnings.filters])
    place = RankInfo(rank, size, rank, size, "lockstep", memory, f"file://{folder}/meeting")
    config = RuntimeConfig(kind=kind, device="cpu", backend=backend, precision=precision, timeout=30)  # type: ignore[arg-type]
    found: dict[str, object] = {}
    with join(place, config) as runtime:
        group = runtime.group
        after = (torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS"), warnings.formatwarning)
        found["left alone"] = after == before[:3] and [*warnings.filters][: len(before[3])] == before[3]
        found["group"] = type(group).__name__
        found["cores"] = runtime.cores
        found["by fabric"] = getattr(group, "_collective", None) is not None
        rows = torch.arange(6, dtype=torch.float64).view(2, 3) + 10 * rank
        group.timings()
        found["all"] = group.gather(rows, "all").numpy()
        found["sum"] = group.reduce(rows, "all").numpy()
        found["flags"] = group.gather(torch.tensor([[rank % 2 == 0]]), "flags").numpy()
        group.barrier("all")
        found["timings"] = np.array(group.timings())
        part = group.split(MEMBERS, COUNTS)
        if rank in MEMBERS:
            own = COUNTS[MEMBERS.index(rank)]
            found["part"] = part.gather(rows[:own], "part").numpy()
            found["part sum"] = part.reduce(rows[:own].to(torch.float32), "part").numpy()
        policy = policy_of(runtime.autocast(runtime.device))
        found["alone"] = gradients(policy, policy, rank)
        module = runtime.replicate(policy, MEMBERS)
        found["replicated"] = isinstance(module, DistributedDataParallel)
        found["together"] = gradients(policy, module, rank)
        found["only"] = runtime.replicate(policy, (1,)) is policy
        found["output"] = policy(batch_of(rank))[0].detach().numpy()
    np.savez(folder / f"{rank}.npz", **found)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(100, exit=True)
    torch.set_num_threads(1)
    folder, kind, backend, precision, rank, size, memory = sys.argv[1:]
    main(Path(folder), kind, backend, precision, int(rank), int(size), None if memory == "-" else int(memory))
