"""One of two ranks of test_world.py: `replicate.py RANK ADDRESS ROUNDS` replicates a module and destroys its process group, again and again."""

import faulthandler
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RuntimeConfig
from lockstep.runtime.world import World


def replicate(world: World) -> None:
    """Replicate a module that holds the last reference to its process group when the group is destroyed."""
    group = world.subgroup((0, 1), "gloo")
    module = DistributedDataParallel(nn.Linear(3, 4), process_group=group)
    module(torch.ones(2, 3)).sum().backward()
    dist.destroy_process_group(group)


def main(rank: int, address: str, rounds: int) -> None:
    faulthandler.dump_traceback_later(60, exit=True)
    torch.set_num_threads(1)
    world = World(RankInfo(rank, 2, rank, 2, "lockstep", None, address), RuntimeConfig(timeout=30))
    for _ in range(rounds):
        replicate(world)
    world.close(failed=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
