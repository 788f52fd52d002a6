"""Measure updates with the matrix products of `compiling/product.cpp` and with those of PyTorch (MKL). Write products.json and products.md.

    python benchmarks/products.py [--repeats 7] [--out benchmarks/products.json]

Runs of one rank in which compiled kernels use the one or the other alternate. A run counts with the medians of its iterations, and a workload with the median of
the ratios of its pairs; the least and the greatest ratio are given as well.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from lockstep.run.environment import processor_type

WORKLOADS = {
    "`cartpole`": ["cartpole", "--total-steps", "100_000"],
    "`reacher`": ["reacher", "--total-steps", "40_000"],
    "`mujoco` with HalfCheetah-v5": ["mujoco", "--env", "HalfCheetah-v5", "--total-steps", "30_000"],
    "`mujoco` with HumanoidStandup-v5": ["mujoco", "--env", "HumanoidStandup-v5", "--total-steps", "16_384"],
}
PROGRAM = """\
import sys
from lockstep.cli.main import main
from lockstep.compiling import kernels

own = sys.argv[1] == "own"
kernels.uses_products = lambda threads: own
sys.exit(main(sys.argv[2:]))
"""
PHASES = {"iteration": "t_iter", "update": "t_learn", "rollout": "t_rollout"}


def run(products: str, words: list[str], folder: Path, name: str) -> dict[str, float]:
    """Train with the products of a kind, and return the median seconds of the phases."""
    environment = {**os.environ, "LOCKSTEP_CACHE": str(folder / f"cache-{products}")}
    flags = ["--ranks", "1", "--restarts", "0", "--runtime.compile", "on", "--run.progress", "off", "--name", name]
    command = [sys.executable, "-c", PROGRAM, products, "train", *words, *flags]
    subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()[2:]
    return {phase: statistics.median(json.loads(line)[key] for line in lines) for phase, key in PHASES.items()}


def ratios(words: list[str], repeats: int, folder: Path) -> dict[str, list[float]]:
    """Return the ratios of the times with own products and with those of PyTorch, by phase, and the milliseconds of the latter."""
    for products in ("own", "mkl"):
        run(products, words, folder, f"warm-{products}")
    pairs = []
    for repeat in range(repeats):
        order = ("own", "mkl") if repeat % 2 else ("mkl", "own")
        pairs.append({products: run(products, words, folder, f"{products}-{repeat}") for products in order})
    result = {phase: [pair["own"][phase] / pair["mkl"][phase] for pair in pairs] for phase in PHASES}
    return {**result, "milliseconds": [1e3 * pair["mkl"]["iteration"] for pair in pairs]}


def main() -> None:
    """Measure all workloads, and write the JSON file and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("products.json"))
    arguments = parser.parse_args()
    measured = {}
    for name, words in WORKLOADS.items():
        with tempfile.TemporaryDirectory() as folder:
            measured[name] = ratios(words, arguments.repeats, Path(folder))
        print(name, {phase: round(statistics.median(values), 3) for phase, values in measured[name].items()})
    machine = f"{os.cpu_count()} cores, {processor_type(portable=False)}, PyTorch {version('torch')}"
    rounded = {
        name: {phase: [round(value, 4) for value in values] for phase, values in by.items()}
        for name, by in measured.items()
    }
    arguments.out.write_text(json.dumps({"machine": machine, "workloads": rounded}, indent=1) + "\n")
    rows = [
        f"| {name} | {statistics.median(by['milliseconds']):.1f} ms | "
        + " | ".join(cell(by[phase]) for phase in PHASES)
        + " |"
        for name, by in measured.items()
    ]
    text = f"""# Matrix products

    python benchmarks/products.py

Time with the matrix products of `compiling/product.cpp` relative to those of PyTorch (MKL), in compiled kernels: median of {arguments.repeats} pairs of runs that
alternate, with the least and the greatest ratio. One rank, one thread. {machine}.

| | MKL: iteration | {" | ".join(PHASES)} |
| --- | --- | --- | --- | --- |
"""
    arguments.out.with_suffix(".md").write_text(text + "\n".join(rows) + "\n")


def cell(values: list[float]) -> str:
    """Return the median, the minimum and the maximum of ratios."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} … {max(values):.2f})"


if __name__ == "__main__":
    main()
