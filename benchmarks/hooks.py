"""Measure the cost of a function that is called after every iteration, and of evaluation during training. Write benchmarks/hooks.json and .md.

    python benchmarks/hooks.py [--repeats 7] [--out benchmarks/hooks.json]

Every run is a command with default settings and compiled kernels. The runs of a workload are interleaved: without anything, with a function that reads and
returns a metric, with one that computes a value with a copy of the policy every tenth iteration, and with such a function and evaluation during training.
The time of a run is that of its iterations, without the start and the end of the process. The ratio is computed within each repeat.
"""

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from lockstep.bench.repeats import Spread, interleave, ratios
from lockstep.run.environment import describe_environment

MODULE = '''
def on_iteration(iteration):
    """Record a metric."""
    return {"steps_per_episode": iteration.metrics["length_mean"] or 0.0}


def value(iteration):
    """Record the value of a state every tenth iteration."""
    if iteration.number % 10 == 0:
        return {"value": iteration.policy.value([0.0] * SIZE)}
'''
WORKLOADS = {
    "`cartpole`, the preset": ("cartpole --total-steps 120_000", 4),
    "Reacher-v5, defaults": ("--env Reacher-v5 --total-steps 60_000", 10),
}
"""Flags, and the size of an observation."""
VARIANTS = {
    "nothing": "",
    "metric": "--run.hooks my_hooks",
    "policy": "--run.hooks my_hooks:value",
    "policy and evaluation": "--run.hooks my_hooks:value --run.evaluate-every 50",
}
DESCRIPTIONS = {
    "metric": "a function that records a metric",
    "policy": "a function that uses the policy every tenth iteration",
    "policy and evaluation": "the same, and evaluation every 50 iterations",
}


def seconds(flags: str, size: int) -> float:
    """Train one run and return the seconds of its iterations."""
    with tempfile.TemporaryDirectory(prefix="lockstep-hooks-") as folder:
        Path(folder, "my_hooks.py").write_text(MODULE.replace("SIZE", str(size)))
        words = [*flags.split(), "--ranks", "1", "--out", folder, "--name", "run", "--run.progress", "off"]
        variables = os.environ | {"PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
        subprocess.run(
            [sys.executable, "-m", "lockstep", "train", *words], check=True, env=variables, stdout=sys.stderr
        )
        rows = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    return sum(row["t_iter"] for row in rows)


def page(costs: dict[str, dict[str, Spread]], repeats: int, machine: str) -> str:
    """Return the Markdown page."""
    lines = [
        "# Cost of hooks and of evaluation during training",
        "",
        "    python benchmarks/hooks.py",
        "",
        "Time of the iterations of a run, relative to the same run without a function: median, minimum and maximum of the ratios of",
        f"{repeats} repeats. {machine}.",
        "",
        "| | " + " | ".join(DESCRIPTIONS.values()) + " |",
        "| --- |" + " --- |" * len(DESCRIPTIONS),
    ]
    for workload, spreads in costs.items():
        cells = [
            f"{spreads[name].median:.3f} ({spreads[name].least:.3f} … {spreads[name].most:.3f})"
            for name in DESCRIPTIONS
        ]
        lines.append(f"| {workload} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all workloads and write the JSON file and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("hooks.json"))
    arguments = parser.parse_args()
    show = partial(print, file=sys.stderr, flush=True)
    times, costs = {}, {}
    for workload, (flags, size) in WORKLOADS.items():
        runs = {name: partial(seconds, f"{flags} {more}", size) for name, more in VARIANTS.items()}
        runs["nothing"]()  # fills the cache of compiled kernels
        times[workload] = interleave(runs, arguments.repeats, show)
        costs[workload] = {name: ratios(times[workload][name], times[workload]["nothing"]) for name in DESCRIPTIONS}
    environment = describe_environment(1)
    machine = f"{os.cpu_count()} cores of {environment['processor']}, PyTorch {environment['packages']['torch']}"
    record = {
        "python": platform.python_version(),
        "machine": machine,
        "seconds": times,
        "ratios": {
            workload: {name: dataclasses.asdict(spread) for name, spread in spreads.items()}
            for workload, spreads in costs.items()
        },
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(page(costs, arguments.repeats, machine))


if __name__ == "__main__":
    main()
