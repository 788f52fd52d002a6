"""Measure whether one process gains by stepping one shard in C++ threads while it computes the actions of another shard. No update.

    python benchmarks/pipeline.py [--repeats 5] [--seconds 2]

Four ways to use two cores for 16 environments of envpool and the default policy:

    together   one shard of 16 with two threads
    in turn    two shards of 8 with two threads each, one after the other
    pipeline   two shards of 8 with one thread each; one shard is stepped while the actions of the other are computed
    two ranks  two processes with 8 environments and one thread each

Writes benchmarks/pipeline.json and .md.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import envpool
import numpy as np
import torch

from lockstep.models.numpy_policy import NumpyPolicy
from lockstep.models.policy import Policy
from lockstep.models.settings import PolicyConfig

HERE = Path(__file__).parent
TASKS = ("CartPole-v1", "LunarLander-v3", "Reacher-v5", "HalfCheetah-v5", "HumanoidStandup-v5")


class Part:
    """Environments of one shard, and a policy for them."""

    def __init__(self, task: str, count: int, threads: int, first: int) -> None:
        """Create `count` environments, with consecutive seeds from `first` on."""
        seeds = list(range(first, first + count))
        self.pool: Any = envpool.make(task, env_type="gymnasium", num_envs=count, num_threads=threads, env_seed=seeds)
        size, space = int(np.prod(self.pool.observation_space.shape)), self.pool.action_space
        self.discrete = hasattr(space, "n")
        actions = int(space.n) if self.discrete else int(np.prod(space.shape))
        policy = Policy(
            size,
            actions,
            0 if self.discrete else actions,
            PolicyConfig(),
            torch.Generator().manual_seed(1),
            torch.float32,
        )
        self.policy = policy  # keeps the memory alive of which the layers are views
        inference = NumpyPolicy(policy, "tanh")
        self.infer, self.head = inference.head(count), np.empty((count, actions), np.float32)
        self.type = space.dtype
        self.observations, _ = self.pool.reset()

    def send(self) -> None:
        """Compute actions and start stepping in the threads."""
        head = self.infer(self.observations.reshape(len(self.observations), -1).astype(np.float32), self.head)
        self.pool.send(head.argmax(-1).astype(self.type) if self.discrete else np.clip(head, -1, 1).astype(self.type))

    def receive(self) -> None:
        """Wait for the threads and store the observations."""
        self.observations = self.pool.recv()[0]


def run(task: str, way: str, seconds: float) -> float:
    """Measure one way of stepping one task. Return environment steps per second."""
    torch.set_num_threads(1)
    if way == "two ranks":
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            return sum(pool.starmap(alone, [(task, seconds), (task, seconds)]))
    sizes = {"together": [(16, 2)], "in turn": [(8, 2)] * 2, "pipeline": [(8, 1)] * 2}[way]
    return measured([Part(task, count, threads, 16 * k) for k, (count, threads) in enumerate(sizes)], way, seconds)


def alone(task: str, seconds: float) -> float:
    """Measure one of two ranks. Return environment steps per second."""
    torch.set_num_threads(1)
    return measured([Part(task, 8, 1, os.getpid())], "in turn", seconds)


def measured(parts: list[Part], way: str, seconds: float) -> float:
    """Step `parts` for about `seconds`. Return environment steps per second of all parts."""
    if way == "pipeline":
        for part in parts:
            part.send()
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for part in parts:
            if way == "pipeline":
                part.receive()
                part.send()
            else:
                part.send()
                part.receive()
            steps += len(part.observations)
    return steps / (time.perf_counter() - start)


def main() -> None:
    """Measure all tasks, with the ways interleaved, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    arguments = parser.parse_args()
    ways = ("together", "in turn", "pipeline", "two ranks")
    speeds: dict[str, dict[str, list[float]]] = {}
    for task in TASKS:
        speeds[task] = {way: [] for way in ways}
        for repeat in range(arguments.repeats):
            for way in ways if repeat % 2 == 0 else ways[::-1]:
                speeds[task][way].append(run(task, way, arguments.seconds))
        print(task, {way: round(statistics.median(rates)) for way, rates in speeds[task].items()}, flush=True)
    record = {"cores": os.cpu_count(), "envpool": version("envpool"), "steps_per_second": speeds}
    (HERE / "pipeline.json").write_text(json.dumps(record, indent=1) + "\n")
    lines = [
        "# Stepping and inference at the same time",
        "",
        "    python benchmarks/pipeline.py",
        "",
        "Steps per second of collecting with 16 environments, without updates. `together`: one shard of 16 with two threads. `in turn`: two shards of 8 with two",
        "threads each, one after the other. `pipeline`: two shards of 8 with one thread each; one is stepped while the actions of the other are computed. `two",
        "ranks`: two processes with 8 environments and one thread each. "
        f"Medians of {arguments.repeats} interleaved repeats, with the range of the ratio. {os.cpu_count()} cores, envpool {version('envpool')}.",
        "",
        "| environment | " + " | ".join(ways) + " | pipeline / two ranks |",
        "| --- |" + " ---: |" * (len(ways) + 1),
    ]
    for task, rates in speeds.items():
        medians = {way: statistics.median(rates[way]) for way in ways}
        ratios = [
            pipeline / two_ranks for pipeline, two_ranks in zip(rates["pipeline"], rates["two ranks"], strict=True)
        ]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        lines.append(f"| {task} | " + " | ".join(f"{medians[way]:,.0f}" for way in ways) + f" | {ratio} |")
    (HERE / "pipeline.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
