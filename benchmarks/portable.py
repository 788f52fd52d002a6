"""Measure the cost of `runtime.bits: portable`, whose bits do not depend on the processor. Write benchmarks/portable.json and .md.

    python benchmarks/portable.py [--repeats 5] [--out benchmarks/portable.json]

Runs with fast and with portable bits alternate. A run counts with the median time of its iterations, so that making kernels and starting do not count. The ratio of
a workload is the median of the ratios of its pairs; the least and the greatest one are given as well.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lockstep.run.environment import describe_environment, processor_type

SHORT_ITERATIONS = ("--config", str(Path(__file__).with_name("cartpole_256.yaml")))
WORKLOADS: dict[str, list[str]] = {
    "CartPole-v1, iterations of 256 steps, with kernels": [
        *SHORT_ITERATIONS,
        "--total-steps",
        "40_000",
        "--runtime.compile",
        "on",
    ],
    "`mujoco` with HalfCheetah-v5, with kernels": [
        "mujoco",
        "--env",
        "HalfCheetah-v5",
        "--total-steps",
        "16_384",
        "--runtime.compile",
        "on",
    ],
    "CartPole-v1, iterations of 256 steps, without kernels": [
        *SHORT_ITERATIONS,
        "--total-steps",
        "8_000",
        "--runtime.compile",
        "off",
    ],
    "`cartpole-no-velocity`, without kernels": [
        "cartpole-no-velocity",
        "--total-steps",
        "10_000",
        "--runtime.compile",
        "off",
    ],
}
PARTS = {"iteration": ("t_rollout", "t_learn"), "rollout": ("t_rollout",), "update": ("t_learn",)}
"""Metrics whose sum is the time of a part, by its name."""


def seconds(words: list[str], bits: str) -> dict[str, float]:
    """Train on one rank, and return the median seconds of an iteration and its parts."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--runtime.bits", bits, "--ranks", "1", "--run.progress", "off", "--name", "run", "--out", folder]
        subprocess.run([sys.executable, "-m", "lockstep", "train", *words, *options], check=True, capture_output=True)
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    return {
        part: statistics.median(sum(row[name] for name in names) for row in rows[1:]) for part, names in PARTS.items()
    }


def page(results: dict[str, list[dict[str, dict[str, float]]]], machine: str) -> str:
    """Return the Markdown page."""
    lines = [
        "# Cost of portable bits",
        "",
        "    python benchmarks/portable.py",
        "",
        "Time with `runtime.bits: portable` relative to `fast`: median of pairs of runs that alternate, with the least and the greatest ratio. One rank.",
        f"{machine}.",
        "",
        "| | fast: iteration | " + " | ".join(PARTS) + " |",
        "| --- | --- |" + " --- |" * len(PARTS),
    ]
    for workload, pairs in results.items():
        milliseconds = 1000 * statistics.median(pair["fast"]["iteration"] for pair in pairs)
        cells = []
        for part in PARTS:
            ratios = [pair["portable"][part] / pair["fast"][part] for pair in pairs]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})")
        lines.append(f"| {workload} | {milliseconds:.1f} ms | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure all workloads, and write the JSON file and the page after every pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("portable.json"))
    arguments = parser.parse_args()
    environment: dict[str, Any] = describe_environment(1)
    machine = f"{os.cpu_count()} cores, {processor_type(portable=False)}, PyTorch {environment['packages']['torch']}"
    results: dict[str, list[dict[str, dict[str, float]]]] = {}
    for workload, words in WORKLOADS.items():
        for bits in ("fast", "portable"):  # builds the interpreter if needed, and is not counted
            seconds([*words[:-4], "--total-steps", "5_000", *words[-2:]], bits)
        for _ in range(arguments.repeats):
            pair = {bits: seconds(words, bits) for bits in ("fast", "portable")}
            results.setdefault(workload, []).append(pair)
            print(workload, {part: round(pair["portable"][part] / pair["fast"][part], 3) for part in PARTS}, flush=True)
            arguments.out.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
            arguments.out.with_suffix(".md").write_text(page(results, machine))


if __name__ == "__main__":
    main()
