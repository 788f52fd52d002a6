"""Predict the published scaling of DD-PPO (Wijmans et al. 2020, arXiv:1911.00357), for benchmarks/simulate.py."""

from collections.abc import Sequence

import numpy as np

from lockstep.algorithm.plan import PlanConfig
from lockstep.bench.simulation.network import NETWORKS, Cluster
from lockstep.bench.simulation.prediction import predict_all
from lockstep.bench.simulation.workload import Costs, Workload

PAPER = {
    "speedup": 107.0,
    "gpus": 128,
    "environments": 4,
    "steps": 128,
    "epochs": 2,
    "minibatches": 2,
    "preemption_threshold": 0.6,
}
"""Published numbers, in the paper and in the configuration of its code (habitat-lab, ddppo_pointnav.yaml). Environments and steps are those of one GPU."""
ASSUMED = {
    "gpus_per_host": 8,
    "parameters": 25_600_000,
    "steps_per_second_of_one_gpu": 180.0,
    "rollout_share": 0.8,
    "rollout_variation": 0.2,
}
"""Assumed numbers. None was fitted to the published speedup."""
NETWORK = NETWORKS["100gbe"]
VARIATIONS = (0.05, 0.1, 0.2, 0.3, 0.4)
"""Standard deviations of the time of a rollout between GPUs, relative to the mean."""
DRAWS = 1000


def speedups() -> list[dict[str, float]]:
    """Predict the speedup on 128 GPUs, with and without the preemption threshold, and that of lockstep for the same work."""
    gpus, per_host = int(PAPER["gpus"]), int(ASSUMED["gpus_per_host"])
    batch = PAPER["environments"] * PAPER["steps"]
    updates = PAPER["epochs"] * PAPER["minibatches"]
    alone = batch / ASSUMED["steps_per_second_of_one_gpu"]
    rollout = alone * ASSUMED["rollout_share"]
    learn = alone - rollout
    # a ring all-reduce of NCCL; the ring enters and leaves every host once
    transfer = 2 * (gpus - 1) / gpus * 4 * ASSUMED["parameters"] / NETWORK.bandwidth
    ring = updates * (transfer + 2 * gpus / per_host * NETWORK.latency)
    rows = []
    for variation in VARIATIONS:
        sigma = np.sqrt(np.log1p(variation**2))
        draws = rollout * np.random.default_rng(0).lognormal(-(sigma**2) / 2, sigma, (DRAWS, gpus))
        last = draws.max(1)
        stop = np.sort(draws, 1)[:, int(np.ceil(PAPER["preemption_threshold"] * gpus)) - 1]
        collected = np.minimum(1.0, stop[:, None] / draws).mean()  # a GPU that is stopped has a part of its steps
        costs = Costs(draws[:, 0], np.full(DRAWS, learn), np.zeros(DRAWS), np.zeros(DRAWS))
        load = Workload(costs, 1, batch, int(ASSUMED["parameters"]), updates, 0.0)
        [here] = predict_all(load, PlanConfig(), [gpus], Cluster(per_host, per_host, NETWORK), True, 0)
        rows.append(
            {
                "variation": variation,
                "with_threshold": float(gpus * collected * alone / (stop.mean() + learn + ring)),
                "without_threshold": float(gpus * alone / (last.mean() + learn + ring)),
                "lockstep": gpus * here.efficiency,
            }
        )
    return rows


def section(rows: Sequence[dict[str, float]]) -> list[str]:
    """Return the section of benchmarks/simulate.md."""
    assumed = next(row["with_threshold"] for row in rows if row["variation"] == ASSUMED["rollout_variation"])
    published = PAPER["speedup"]
    difference = f"{abs(assumed / published - 1):.0%} {'above' if assumed > published else 'below'}"
    lines = [
        "## DD-PPO",
        "",
        f"Wijmans et al. (2020, arXiv:1911.00357) report a speedup of {published:g} on 128 GPUs over one GPU, with 4 environments of 128 steps per GPU, 2 epochs of 2",
        "minibatches, and a preemption threshold: when 60 % of the GPUs have finished their rollouts, the others stop collecting (`plan.preempt`). `lockstep bench",
        "simulate` predicts exact plans only, so `benchmarks/ddppo.py` computes the threshold itself, with draws as in the model.",
        "",
        "These numbers are assumed; none was fitted to the published speedup:",
        "",
        f"- gradients of {ASSUMED['parameters']:,} float32 numbers (the size of a ResNet-50), added by a ring all-reduce of NCCL that",
        "  does not overlap with the backward pass;",
        f"- hosts of {ASSUMED['gpus_per_host']} GPUs, each with a network interface of 100 Gbit/s and a latency of 80 µs;",
        f"- one GPU takes {ASSUMED['steps_per_second_of_one_gpu']:g} steps per second (2.5 billion steps in under 3 days on 64 GPUs are at least 151 per GPU), with {ASSUMED['rollout_share']:.0%} of the time for rollouts;",
        f"- the times of rollouts vary independently between GPUs, log-normally, with a standard deviation of {ASSUMED['rollout_variation']:.0%} of the mean.",
        "",
        "| standard deviation of rollouts | with the threshold | without it | lockstep, gloo |",
        "| ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['variation']:.0%} | {row['with_threshold']:.0f} | {row['without_threshold']:.0f} | {row['lockstep']:.0f} |"
        for row in rows
    ]
    return [
        *lines,
        "",
        f"With the assumed standard deviation, the predicted speedup is {assumed:.0f}, {difference} the published one. The last column is the same work on lockstep: without",
        "a threshold, with gradients that are added in the memory of each host and along the chain of hosts through gloo.",
    ]
