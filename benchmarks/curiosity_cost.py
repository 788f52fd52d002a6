"""Measure the cost of curiosity: steps per second during training, with every method and without curiosity.

    python benchmarks/curiosity_cost.py [CASE …] [--out benchmarks/curiosity_cost.json] [--seconds 6] [--repeats 5]

CartPole-v1 on one rank, and MountainCar-v0 with RND on two ranks: 8 environments of 256 steps per rank, 4 epochs of 4 minibatches, defaults for all
other settings. Every repeat runs all cases one after the other, each in its own process. The ratio to the run without curiosity is computed within a
repeat. Medians, minimum and maximum are reported.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
from importlib.metadata import version
from pathlib import Path

from engines import processor

from lockstep.algorithm.plan import PlanConfig
from lockstep.bench.training import train
from lockstep.config import Config
from lockstep.curiosity.settings import CuriosityConfig, Kind
from lockstep.envs.settings import EnvConfig, RolloutConfig
from lockstep.experiment.resolve import resolve
from lockstep.ppo.settings import PPOConfig
from lockstep.run.settings import RunConfig

METHODS: tuple[Kind, ...] = ("none", "icm", "rnd", "ngu", "e3b", "re3", "disagreement")
HEADS = CuriosityConfig("rnd", "two-heads", gamma=0.99)
CASES = {
    **{f"CartPole-v1, {method}": ("CartPole-v1", 1, CuriosityConfig(method)) for method in METHODS},
    "CartPole-v1, rnd, two heads": ("CartPole-v1", 1, HEADS),
    "MountainCar-v0, none": ("MountainCar-v0", 2, CuriosityConfig()),
    "MountainCar-v0, rnd": ("MountainCar-v0", 2, CuriosityConfig("rnd")),
}


def config_of(env_id: str, ranks: int, curiosity: CuriosityConfig) -> Config:
    """Return the resolved config of one case."""
    config = Config(
        env=EnvConfig(env_id, count=8 * ranks),
        rollout=RolloutConfig(256),
        ppo=PPOConfig(
            learning_rate=3e-4, learning_rate_kl=None, entropy=0.01, epochs=4, minibatches=4, recompute_advantages=False
        ),
        plan=PlanConfig(shards=ranks),
        curiosity=curiosity,
        run=RunConfig(total_steps=10**9),
    )
    return resolve(dataclasses.replace(config, runtime=dataclasses.replace(config.runtime, compile="on")), ranks)


def main() -> None:
    """Measure all cases and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "cases",
        nargs="*",
        default=list(CASES),
        help="the cases to measure (default: all); the runs without curiosity are always measured",
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("curiosity_cost.json"))
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    baselines = {f"{CASES[case][0]}, none" for case in arguments.cases}
    chosen = {case: words for case, words in CASES.items() if case in {*arguments.cases, *baselines}}
    configs = {case: (config_of(*words), words[1]) for case, words in chosen.items()}
    for config, ranks in configs.values():
        train(config, ranks, iterations=5)  # fills the cache of compiled kernels
    rates: dict[str, list[float]] = {case: [] for case in chosen}
    for repeat in range(arguments.repeats):
        for case in chosen if repeat % 2 else reversed(chosen):
            config, ranks = configs[case]
            rates[case].append(train(config, ranks, seconds=arguments.seconds).rate)
        print({case: round(case_rates[-1]) for case, case_rates in rates.items()}, file=sys.stderr, flush=True)
    records = []
    for case, (env_id, ranks, _) in chosen.items():
        slowdowns = [baseline / rate for baseline, rate in zip(rates[f"{env_id}, none"], rates[case], strict=True)]
        records.append(
            {
                "case": case,
                "ranks": ranks,
                "steps_per_second": round(statistics.median(rates[case])),
                "least": round(min(rates[case])),
                "most": round(max(rates[case])),
                "times_slower": round(statistics.median(slowdowns), 2),
                "times_slower_range": [round(min(slowdowns), 2), round(max(slowdowns), 2)],
            }
        )
    result = {
        "command": " ".join(["python benchmarks/curiosity_cost.py", *sys.argv[1:]]),
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": {package: version(package) for package in ("torch", "gymnasium", "numpy")},
        "seconds": arguments.seconds,
        "repeats": arguments.repeats,
        "records": records,
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
