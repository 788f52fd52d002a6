"""Program of one rank, started by test_runtime.py: `member.py FOLDER KIND BACKEND PRECISION RANK SIZE MEMORY`.

It joins the other ranks (MEMORY is a file descriptor, or `-`), uses all parts of a runtime, and writes the results to `RANK.npz`. If it
hangs, it prints a traceback and ends.
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

from lockstep.distributions.discrete import Categorical
from lockstep.models.policy import Policy
from lockstep.models.settings import PolicyConfig
from lockstep.runtime.join import join
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RuntimeConfig

MEMBERS = (0, 2)
"""The ranks of the subgroup."""
COUNTS = (2, 1)
"""Numbers of rows that they contribute."""


def policy_of(autocast: object) -> Policy:
    return Policy(
        3, Categorical(2), PolicyConfig(hidden=(8,)), torch.Generator().manual_seed(1), torch.float32, autocast
    )


def batch_of(rank: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 12).view(4, 3) * (rank + 1)


def gradients(policy: nn.Module, module: nn.Module, rank: int) -> np.ndarray:
    policy.zero_grad()
    parameters, values = module(batch_of(rank))
    (parameters.square().sum() + values.sum()).backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]).numpy()


def main(folder: Path, kind: str, backend: str, precision: str, rank: int, size: int, memory: int | None) -> None:
    before = (torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS"), warnings.formatwarning, [*warnings.filters])
    rank_info = RankInfo(rank, size, rank, size, "lockstep", memory, f"file://{folder}/rendezvous")
    config = RuntimeConfig(kind=kind, device="cpu", backend=backend, precision=precision, timeout=30)  # type: ignore[arg-type]
    results: dict[str, object] = {}
    with join(rank_info, config) as runtime:
        group = runtime.group
        after = (torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS"), warnings.formatwarning)
        results["process unchanged"] = after == before[:3] and [*warnings.filters][: len(before[3])] == before[3]
        results["group"] = type(group).__name__
        results["cores"] = runtime.cores
        results["uses fabric"] = getattr(group, "_collective", None) is not None
        rows = torch.arange(6, dtype=torch.float64).view(2, 3) + 10 * rank
        group.timings()
        results["all"] = group.gather(rows, "all").numpy()
        results["sum"] = group.reduce(rows, "all").numpy()
        results["flags"] = group.gather(torch.tensor([[rank % 2 == 0]]), "flags").numpy()
        group.barrier("all")
        results["timings"] = np.array(group.timings())
        subgroup = group.split(MEMBERS, COUNTS)
        if rank in MEMBERS:
            count = COUNTS[MEMBERS.index(rank)]
            results["subgroup"] = subgroup.gather(rows[:count], "subgroup").numpy()
            results["subgroup sum"] = subgroup.reduce(rows[:count].to(torch.float32), "subgroup").numpy()
        policy = policy_of(runtime.autocast(runtime.device))
        results["own gradients"] = gradients(policy, policy, rank)
        module = runtime.replicate(policy, MEMBERS)
        results["replicated"] = isinstance(module, DistributedDataParallel)
        results["replicated gradients"] = gradients(policy, module, rank)
        results["single member unchanged"] = runtime.replicate(policy, (1,)) is policy
        results["output"] = policy(batch_of(rank))[0].detach().numpy()
    np.savez(folder / f"{rank}.npz", **results)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(100, exit=True)
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    folder, kind, backend, precision, rank, size, memory = sys.argv[1:]
    main(Path(folder), kind, backend, precision, int(rank), int(size), None if memory == "-" else int(memory))
