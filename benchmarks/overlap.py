"""Measure gradient steps of a policy with convolutions on two hosts: rows added after the backward pass, and during it.

    python benchmarks/overlap.py              # as root, with iproute2; about 5 minutes; writes benchmarks/overlap.json

The hosts are two network namespaces of this machine, connected by a virtual Ethernet pair whose rate is limited. The policy is that of the preset `atari`
with one encoder for actions and values (1.7 million parameters); every rank has one shard. Both ways alternate in the same processes, and give the same bits.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import statistics
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from namespaces import ADDRESSES
from on_two_hosts import main

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Microbatch
from lockstep.algorithm.gradient import OrderedGradient
from lockstep.algorithm.loss import LOSS_SCALARS
from lockstep.algorithm.overlapped_gradient import OverlappedGradient
from lockstep.compiling.kernels import InterpretedKernel
from lockstep.envs.spaces import Spaces
from lockstep.group.network import NetworkGroup, upgrade_to_shared_memory
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig

PER_HOST = (1, 2)
ROWS = (32, 64, 128)
STEPS = 10
"""Gradient steps of a measurement."""
WAYS = {"after": OrderedGradient, "during": OverlappedGradient}
PORT = 29543
NONE = np.zeros(0, np.float32)
TRAINED = (True, True)


def make_minibatch(agent: Agent, rows: int, rank: int) -> list[Microbatch]:
    """Return a minibatch of one microbatch of random pixels."""
    generator = torch.Generator().manual_seed(rank)
    pixels = torch.randint(256, (rows, agent.spaces.pixel_count), dtype=torch.uint8, generator=generator)
    numbers = torch.rand(rows, agent.layout.width, generator=generator)
    numbers[:, agent.spaces.observation_size] = 1  # the action
    numbers[:, -1] = 1  # the row is valid
    return [Microbatch(numbers, pixels)]


def run_rank(rank: int, per_host: int, rounds: int) -> None:
    """Run all measurements of one rank. Rank 0 prints them as JSON."""
    torch.set_num_threads(1)
    connected = NetworkGroup("gloo", rank, 2 * per_host, 60, f"tcp://{ADDRESSES[0]}:{PORT}")
    group = upgrade_to_shared_memory(connected, 60)
    spaces = Spaces(0, (6,), NONE, NONE, images=((4, 84, 84),))
    agent = Agent(spaces, PolicyConfig(shared=True, hidden=(512,)), False, 1, torch.float32)
    scalars, records = torch.full((len(LOSS_SCALARS),), 0.1), []
    for rows in ROWS:
        minibatch = make_minibatch(agent, rows, rank)
        gradients = {way: kind(agent, PPOConfig(), group, InterpretedKernel) for way, kind in WAYS.items()}
        found = [gradient(minibatch, scalars, TRAINED).clone() for gradient in gradients.values()]
        assert torch.equal(*found)
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for k in range(rounds):
            for way in list(WAYS)[:: 1 if k % 2 else -1]:
                group.barrier("begin")
                start = perf_counter()
                for _ in range(STEPS):
                    gradients[way](minibatch, scalars, TRAINED)
                times[way].append(1e3 * (perf_counter() - start) / STEPS)
        ratios = sorted(round(a / b, 3) for a, b in zip(times["during"], times["after"], strict=True))
        medians = {way: round(statistics.median(values), 2) for way, values in times.items()}
        records.append({"ranks per host": per_host, "rows": rows, **medians, "ratios": ratios})
    if rank == 0:
        print(json.dumps(records))
    group.barrier("end")
    group.close()


if __name__ == "__main__":
    main(Path(__file__), __doc__, run_rank, PER_HOST, rounds=9)
