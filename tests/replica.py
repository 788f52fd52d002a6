"""Program that test_ddp.py starts: `replica.py SIZE FOLDER`. It forks the trainers, so that PyTorch is imported once.

Each trains every case with the policy in DistributedDataParallel, and writes weights, optimizer state and metrics to `RANK.CASE.npy`.
"""

import os
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
from tests.models.test_probe import Encoder, Mean
from tests.watched import CONTINUOUS, DISCRETE, ITERATION, PLAIN, SEED, agent_of, perturb, rollouts_of
from torch import nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.update import Update
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.group.group import Group
from lockstep.group.network import NetworkGroup
from lockstep.models.registry import register_encoder
from lockstep.ppo.settings import PPOConfig
from lockstep.processes.parent import die_with_parent

SHARDS = 6
EQUAL, UNEQUAL = ((0, 1), (2, 3), (4, 5)), ((0, 1, 2), (3,), (4, 5))
CASES = {
    "discrete": {},
    "continuous": {"spaces": CONTINUOUS},
    "shared trunk": {"shared": True},
    "policy ends first": {"policy_epochs": 1, "value_epochs": 3},
    "critic ends first": {"policy_epochs": 3, "value_epochs": 1},
    "stopped": {"kl_stop": 1e-9, "policy_epochs": 3, "value_epochs": 2},
    "shared data": {"share_data": True},
    "fused": {"fused": True},
    "fused, unequal": {"fused": True, "shares": UNEQUAL},
    "vtrace": {"vtrace": True},
    "curiosity": {"curiosity": CuriosityConfig("icm", hidden=(8,), feature_size=4)},
    "running mean": {"encoder": "mean"},
    "running mean, fused": {"encoder": "mean", "fused": True},
    "two heads": {"curiosity": CuriosityConfig("rnd", "two-heads", gamma=0.9, hidden=(8,), feature_size=4)},
}
register_encoder("mean", lambda features, *others: Encoder(Mean, features))
OPTIONS = ("share_data", "vtrace", "fused")


def train(case: str, group: Group, shards: tuple[int, ...], replicate: object = None) -> np.ndarray:
    words = dict(CASES[case])
    words.pop("shares", None)
    options = {name: words.pop(name) for name in OPTIONS if name in words}
    curiosity = words.pop("curiosity", PLAIN)
    kind = words.pop("spaces", DISCRETE), words.pop("shared", False)
    agent = agent_of(*kind, normalize=True, curiosity=curiosity, encoder=words.pop("encoder", "auto"))
    rollouts = rollouts_of(agent, SHARDS)
    perturb(agent)
    config = PPOConfig(**{"minibatches": 2, "learning_rate": 0.01, "epochs": 3} | words)
    update = Update(agent, config, group, shards, SEED, UpdateOptions(**options), replicate=replicate)
    steps = 0.0
    for iteration in (ITERATION, ITERATION + 1):
        metrics = update([rollouts[shard] for shard in shards], iteration, 0.0)
        steps += metrics["update_steps"]
    assert replicate is None or len(REDUCED) == steps  # one per step, however many shards a trainer has
    memory = agent.flat.buffer.untyped_storage().data_ptr()
    assert {parameter.untyped_storage().data_ptr() for parameter in agent.policy.parameters()} == {memory}
    state = torch.cat([tensor.flatten() for tensor in (*agent.state().values(), *update.state().values())])
    return np.concatenate([state.numpy(), [metrics[name] for name in sorted(metrics)]])


REDUCED: list[int] = []
"""One entry per all-reduce of a gradient bucket; all parameters are in one bucket."""


def replicate(module: nn.Module) -> nn.Module:
    def count(state: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        REDUCED.append(bucket.index())
        return allreduce_hook(None, bucket)

    replica = DistributedDataParallel(module)
    replica.register_comm_hook(None, count)
    REDUCED.clear()
    return replica


def train_all(rank: int, size: int, folder: Path) -> None:
    """Train every case as one of the trainers."""
    group = NetworkGroup("gloo", rank, size, 30.0, f"file://{folder}/rendezvous")
    for case, words in CASES.items():
        np.save(folder / f"{rank}.{case}.npy", train(case, group, words.get("shares", EQUAL)[rank], replicate))
    group.close()


def fork_rank(rank: int, size: int, folder: Path) -> int:
    """Fork one trainer and return its process id."""
    parent = os.getpid()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        die_with_parent(parent)
        train_all(rank, size, folder)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(
            code
        )  # as `lockstep` does: threads of Gloo sometimes abort a process in which the interpreter is finalized


if __name__ == "__main__":
    torch.set_num_threads(1)
    size, folder = int(sys.argv[1]), Path(sys.argv[2])
    ranks = [fork_rank(rank, size, folder) for rank in range(size)]
    codes = [os.waitpid(rank, 0)[1] for rank in ranks]
    sys.exit(any(codes))
