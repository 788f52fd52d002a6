"""Measure the gain of `plan.exact: false`: steps per CPU second of one rank with several shards, computed one by one and fused.

    python benchmarks/fused.py [--out benchmarks/fused.json] [--seconds 1] [--repeats 7]

Whole iterations, collecting and updating, of CartPole with the default settings. Every repeat measures three cases one after the other, in alternating
order, so that other load on the machine affects all of them: exact, fused, and the same number of environments in one shard. A repeat gives one ratio. The
process is bound to one core and its CPU time is counted. Medians, and minimum and maximum of the ratios are reported. The true median is between
minimum and maximum with a probability of 1 - 2 / 2^repeats, for any distribution.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
from engines import processor

from lockstep.algorithm.collect import Shard, collect, rollout_sizes
from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.plan import PlanConfig
from lockstep.algorithm.update import Update
from lockstep.config import Config
from lockstep.envs.catalog import make_engine
from lockstep.envs.settings import EnvConfig
from lockstep.experiment.build import make_agent
from lockstep.experiment.resolve import resolve
from lockstep.group.solo import Solo
from lockstep.rollout import Rollout

SHARDS, ENVIRONMENTS = (4, 8), (2, 4, 8)


class Measured:
    """One rank with `shards` shards of `environments` environments each, exact or fused."""

    def __init__(self, shards: int, environments: int, exact: bool) -> None:
        env = EnvConfig(id="CartPole-v1", count=shards * environments)
        config = resolve(Config(env=env, plan=PlanConfig(shards=shards, exact=exact)), ranks=1)
        seed, steps, agent = config.run.seed, config.rollout.steps, make_agent(config)
        self.steps, sizes = env.count * steps, rollout_sizes(agent, steps, environments)
        self.shards = [
            Shard(k, make_engine(config.env, seed, k, shards), [Rollout.empty(sizes)], seed, config.ppo.gamma)
            for k in range(shards)
        ]
        self.update = Update(agent, config.ppo, Solo(), range(shards), seed, UpdateOptions(fused=not exact))
        self.iteration = 0
        self.run(0.0)

    def run(self, seconds: float) -> tuple[float, float]:
        """Train for at least `seconds`. Return the CPU seconds per iteration of collecting and of updating."""
        collected, updated, iterations, clock = 0.0, 0.0, 0, time.process_time
        while not iterations or collected + updated < seconds:
            self.iteration += 1
            iterations += 1
            start = clock()
            rollouts = collect(self.shards, self.update.agent, self.iteration, self.update.fused)
            middle = clock()
            self.update(rollouts, self.iteration, 0.0)
            collected += middle - start
            updated += clock() - middle
        return collected / iterations, updated / iterations


def measure(shards: int, environments: int, seconds: float, repeats: int) -> dict[str, object]:
    """Measure exact, fused and one-shard computation, and return the record."""
    kinds = [Measured(shards, environments, exact) for exact in (True, False)]
    kinds.append(Measured(1, shards * environments, exact=True))
    times: list[list[tuple[float, float]]] = [[] for _ in kinds]
    for repeat in range(repeats):
        for which in (0, 1, 2) if repeat % 2 else (2, 1, 0):
            times[which].append(kinds[which].run(seconds))
    pairs = list(zip(*times[:2], strict=True))
    ratios = [sum(exact) / sum(fused) for exact, fused in pairs]
    rates = [
        round(kind.steps / statistics.median(map(sum, kind_times)))
        for kind, kind_times in zip(kinds, times, strict=True)
    ]
    return {
        "shards": shards,
        "environments_per_shard": environments,
        "exact_steps_per_second": rates[0],
        "fused_steps_per_second": rates[1],
        "one_shard_steps_per_second": rates[2],
        "ratio": round(statistics.median(ratios), 2),
        "least": round(min(ratios), 2),
        "most": round(max(ratios), 2),
        "ratio_of_collecting": round(statistics.median(exact[0] / fused[0] for exact, fused in pairs), 2),
        "ratio_of_updating": round(statistics.median(exact[1] / fused[1] for exact, fused in pairs), 2),
    }


def main() -> None:
    """Measure all sizes and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("fused.json"))
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    records = []
    for shards in SHARDS:
        for environments in ENVIRONMENTS:
            records.append(measure(shards, environments, arguments.seconds, arguments.repeats))
            print(records[-1], file=sys.stderr, flush=True)
    result = {
        "command": " ".join(["python benchmarks/fused.py", *sys.argv[1:]]),
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": {package: version(package) for package in ("torch", "gymnasium", "numpy")},
        "seconds": arguments.seconds,
        "repeats": arguments.repeats,
        "records": records,
    }
    head = json.dumps({key: value for key, value in result.items() if key != "records"}, indent=1)
    lines = ",\n".join("  " + json.dumps(record) for record in records)
    arguments.out.write_text(f'{head[:-2]},\n "records": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
