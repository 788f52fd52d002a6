"""Measure what checkpoints cost: the wall time of runs with and without them. Write benchmarks/checkpoints.json and .md.

    python benchmarks/checkpoints.py [--repeats 5] [--out benchmarks/checkpoints.json]

Pairs of runs of one rank without loggers: one with the default `run.checkpoint_every`, one that only writes a checkpoint at its end. The time is that of all
iterations. The runs of a pair follow each other, in alternating order, and the ratio of their times is reported. The time that training is held up in `save` is
measured in the same runs, as the ratio of two runs has noise that is larger than the cost.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from lockstep.run.environment import describe_environment

SHORT_ITERATIONS = str(Path(__file__).with_name("cartpole_256.yaml"))
WORKLOADS = {
    "CartPole-v1, iterations of 256 steps": ({"config": SHORT_ITERATIONS}, 50),
    "CartPole-v1, iterations of 256 steps, a checkpoint every 10 iterations": ({"config": SHORT_ITERATIONS}, 10),
    "`pendulum`, the preset": ({"preset": "pendulum", "total_steps": 200_000}, 50),
}
NEVER = 10**9
PROGRAM = """
import json, sys, time
import lockstep
from lockstep.run.run import TrainingRun

save, spent = TrainingRun.save, []

def timed(self, *words):
    start = time.perf_counter()
    save(self, *words)
    spent.append(time.perf_counter() - start)

TrainingRun.save = timed
words, every, folder = sys.argv[1:]
run = {"folder": folder, "loggers": (), "progress": "off", "checkpoint_every": int(every)}
run = lockstep.train(**json.loads(words), run=run)
print(json.dumps([sum(row["t_iter"] for row in run.metrics), sum(spent[:-1])]))
"""


def measure(words: dict[str, object], every: int) -> tuple[float, float]:
    """Train once, and return the seconds of all iterations, and those in `save`, without the last checkpoint, which every run writes."""
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as folder:
        command = [sys.executable, "-c", PROGRAM, json.dumps(words), str(every), folder]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    total, saving = json.loads(output.splitlines()[-1])
    return total, saving


def main() -> None:
    """Measure all workloads and write the JSON file and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("checkpoints.json"))
    arguments = parser.parse_args()
    measure({"config": SHORT_ITERATIONS}, NEVER)  # fills the cache of compiled kernels
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in WORKLOADS}
    for repeat in range(arguments.repeats):
        for name, (words, every) in WORKLOADS.items():
            order = (every, NEVER) if repeat % 2 else (NEVER, every)
            found = {interval: measure(words, interval) for interval in order}
            (seconds, saving), (without, _) = found[every], found[NEVER]
            runs[name].append({"with": seconds, "without": without, "saving": saving})
            print(name, f"{seconds / without:.4f}", f"{saving / seconds:.3%}", file=sys.stderr, flush=True)
    environment = describe_environment(1)
    machine = f"{os.cpu_count()} cores of {environment['processor']}, PyTorch {environment['packages']['torch']}"
    arguments.out.write_text(json.dumps({"machine": machine, "runs": runs}, indent=1) + "\n")
    lines = [
        "# Cost of checkpoints\n\n    python benchmarks/checkpoints.py\n",
        "Wall time of all iterations of a run with checkpoints, divided by that of a run that writes one at its end, and the fraction of the time in which",
        f"training is held up by writing them. Medians of {arguments.repeats} pairs, with minimum and maximum. {machine}.\n",
        "| | time with / without | held up |\n| --- | --- | --- |",
    ]
    for name, pairs in runs.items():
        ratios = sorted(pair["with"] / pair["without"] for pair in pairs)
        shares = sorted(pair["saving"] / pair["with"] for pair in pairs)
        cells = f"{median(ratios):.3f} ({ratios[0]:.3f} … {ratios[-1]:.3f}) | {median(shares):.2%} ({shares[0]:.2%} … {shares[-1]:.2%})"
        lines.append(f"| {name} | {cells} |")
    arguments.out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
