"""Measure the cost of a function that is called after every iteration. Write benchmarks/hooks.json and .md after every result.

    python benchmarks/hooks.py [--steps 120_000] [--out benchmarks/hooks.json]

In one run, the function is called in every other block of 10 iterations. The ratio is that of the CPU time of the training thread in a block
with calls, to the mean of the blocks before and after it: other load on the machine affects both alike, and the start of the process does not
count. Kernels are not compiled, so that no compiler is needed: the cost of a call does not depend on it.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lockstep
from lockstep.run import run as run_module
from lockstep.run.environment import describe_environment
from lockstep.run.run import TrainingRun

BLOCK = 10
WORKLOADS: dict[str, dict[str, Any]] = {
    "CartPole-v1, iterations of 256 steps, 4 epochs": {
        "config": str(Path(__file__).with_name("cartpole_256.yaml")),
        "ppo.epochs": 4,
    },
    "Reacher-v5, 16 steps, 1 epoch": {"env": "Reacher-v5", "rollout.steps": 16, "ppo.epochs": 1},
}
NOTES = """\
Before, `info_means` and `idle` were computed by NumPy also where there was nothing to compute: 0.13 ms of the 0.17 ms of a call were the computation of
the metrics, and are 0.07 ms now. (The metrics of iterations without a hook are computed a few times a second, when the code is in the processor's caches.)

An earlier version compared the times of whole runs of CartPole-v1, with compiled kernels: with the function that uses the policy the ratio was 1.235
(1.202 … 1.270), and with evaluation every 50 iterations as well 1.228 (1.191 … 1.249). Copies of the policy have become cheaper since.
"""


def record_metric(iteration: lockstep.Iteration) -> dict[str, float]:
    """Record a metric."""
    return {"steps_per_episode": float(str(iteration.metrics["length_mean"] or 0.0))}


def record_value(iteration: lockstep.Iteration) -> dict[str, float] | None:
    """Record the value of a state every tenth iteration."""
    if iteration.number % 10:
        return None
    return {"value": float(iteration.policy.value(iteration.policy.observation_space.sample()))}


VARIANTS: dict[str, Callable[[lockstep.Iteration], Mapping[str, float] | None]] = {
    "a function that records a metric": record_metric,
    "a function that uses the policy every tenth iteration": record_value,
}


def block_seconds(settings: dict[str, Any], hook: Callable[..., object], steps: int) -> list[float]:
    """Train one run, and return the CPU seconds of every block of iterations. Blocks with an odd index have calls of `hook`."""
    marks: list[float] = []
    record, bound = TrainingRun.record, []

    def record_and_switch(run: TrainingRun, iteration: int, losses: Mapping[str, float]) -> None:
        if not bound:
            bound.append(run._hook)
        run._hook = bound[0] if (iteration - 1) // BLOCK % 2 else None
        record(run, iteration, losses)
        marks.append(time.thread_time())

    TrainingRun.record = record_and_switch  # type: ignore[method-assign]
    # metrics are written as often as on an idle machine
    run_module.perf_counter = time.thread_time  # type: ignore[attr-defined]
    try:
        with tempfile.TemporaryDirectory(prefix="lockstep-hooks-") as folder:
            options = {"run.progress": "off", "run.checkpoint_every": 10**6, "runtime.compile": "off", "out": folder}
            lockstep.train(**settings, **options, total_steps=steps, on_iteration=hook)
    finally:
        TrainingRun.record = record  # type: ignore[method-assign]
        run_module.perf_counter = time.perf_counter  # type: ignore[attr-defined]
    ends = marks[BLOCK - 1 :: BLOCK]
    return [end - start for start, end in itertools.pairwise(ends)]  # without the first block


def compare(blocks: list[float]) -> dict[str, float]:
    """Return the milliseconds per iteration without calls, and the mean of the ratios with half its 95% interval. `blocks` begins with calls."""
    calls, others = blocks[2::2], blocks[1::2]
    pairs = zip(calls, others, others[1:], strict=False)
    ratios = [2 * seconds / (before + after) for seconds, before, after in pairs]
    half = 1.96 * statistics.stdev(ratios) / len(ratios) ** 0.5
    milliseconds = 1000 * statistics.mean(others) / BLOCK
    return {"ms": milliseconds, "ratio": statistics.mean(ratios), "half": half, "blocks": len(ratios)}


def page(results: dict[str, dict[str, dict[str, float]]], machine: str) -> str:
    """Return the Markdown page."""
    lines = [
        "# Cost of hooks",
        "",
        "    python benchmarks/hooks.py",
        "",
        "CPU time of the training thread in iterations with calls, relative to iterations of the same run without: mean and 95% interval.",
        f"{machine}.",
        "",
        "| | CPU time of an iteration | " + " | ".join(VARIANTS) + " |",
        "| --- | --- |" + " --- |" * len(VARIANTS),
    ]
    for workload, variants in results.items():
        milliseconds = statistics.mean(result["ms"] for result in variants.values())
        found = [variants.get(name) for name in VARIANTS]
        cells = ["" if result is None else f"{result['ratio']:.3f} ± {result['half']:.3f}" for result in found]
        lines.append(f"| {workload} | {milliseconds:.1f} ms | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", NOTES])


def main() -> None:
    """Measure all workloads, and write the JSON file and the page after every result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("hooks.json"))
    arguments = parser.parse_args()
    environment = describe_environment(1)
    machine = f"{os.cpu_count()} cores of {environment['processor']}, PyTorch {environment['packages']['torch']}"
    results: dict[str, dict[str, dict[str, float]]] = {}
    for workload, settings in WORKLOADS.items():
        for name, hook in VARIANTS.items():
            result = compare(block_seconds(settings, hook, arguments.steps))
            results.setdefault(workload, {})[name] = result
            print(workload, name, result, file=sys.stderr, flush=True)
            arguments.out.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
            arguments.out.with_suffix(".md").write_text(page(results, machine))


if __name__ == "__main__":
    main()
