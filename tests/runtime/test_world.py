"""Test of process groups that are destroyed while a module still refers to them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROUNDS = 100
WORK = """
import faulthandler, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RuntimeConfig
from lockstep.runtime.world import World

faulthandler.dump_traceback_later(60, exit=True)
torch.set_num_threads(1)
rank, address, rounds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
world = World(RankInfo(rank, 2, rank, 2, "lockstep", None, address), RuntimeConfig(timeout=30))


def replicate() -> None:
    group = world.subgroup((0, 1), "gloo")
    module = DistributedDataParallel(nn.Linear(3, 4), process_group=group)
    module(torch.ones(2, 3)).sum().backward()
    dist.destroy_process_group(group)


for _ in range(rounds):
    replicate()
world.close(failed=False)
"""


def test_deleting_a_replicated_module_does_not_deadlock(root: Path, tmp_path: Path) -> None:
    """PyTorch deadlocks in a few of a hundred rounds if the module holds the last reference to its group."""
    command = [sys.executable, "-c", WORK]
    environ = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [*command, str(rank), f"file://{tmp_path}/meeting", str(ROUNDS)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
