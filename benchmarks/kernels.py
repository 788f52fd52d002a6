"""Measure updates with interpreted kernels, operation by operation, and with another version of lockstep. Write kernels.json and kernels.md.

    python benchmarks/kernels.py [--repeats 7] [--against CHECKOUT] [--out benchmarks/kernels.json]

Runs of one rank alternate between `runtime.compile` auto and off and, with `--against`, auto in another checkout of lockstep. A run counts with the medians of its
iterations, and a workload with the median of the ratios of its pairs; the least and the greatest ratio are given as well. All kernels are ready before the
measured iterations begin.
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
    "CartPole-v1, iterations of 256 steps": [
        "--config",
        str(Path(__file__).with_name("cartpole_256.yaml")),
        "--total-steps",
        "50_000",
    ],
    "default on Pendulum-v1": ["--env", "Pendulum-v1", "--total-steps", "20_480"],
    "`reacher`": ["reacher", "--total-steps", "20_480"],
    "`mujoco` with HalfCheetah-v5": ["mujoco", "--env", "HalfCheetah-v5", "--total-steps", "20_480"],
    "HalfCheetah-v5, layers of 256": [
        *("mujoco", "--env", "HalfCheetah-v5", "--policy.hidden", "[256,256]", "--total-steps", "8_192"),
    ],
    "default on CartPole-v1 with an LSTM": ["--env", "CartPole-v1", "--policy.core", "lstm", "--total-steps", "12_288"],
    "the same, 4 minibatches": [
        *("--env", "CartPole-v1", "--policy.core", "lstm", "--ppo.minibatches", "4", "--total-steps", "12_288"),
    ],
    "default on CartPole-v1 with a GRU": ["--env", "CartPole-v1", "--policy.core", "gru", "--total-steps", "12_288"],
    "default on CartPole-v1 with a minGRU": [
        *("--env", "CartPole-v1", "--policy.core", "mingru", "--total-steps", "12_288"),
    ],
}
PHASES = {"iteration": "t_iter", "update": "t_learn"}
HERE = Path(__file__).parents[1]


def run(kind: str, checkout: Path, words: list[str], folder: Path, name: str) -> dict[str, float]:
    """Train with a version and a setting of `runtime.compile`, and return the median milliseconds of the phases."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "LOCKSTEP_CACHE": str(folder / "cache")}
    flags = [
        "--ranks",
        "1",
        "--restarts",
        "0",
        "--run.progress",
        "off",
        "--runtime.compile",
        "off" if kind == "off" else "auto",
    ]
    command = [sys.executable, "-m", "lockstep", "train", *words, *flags, "--name", name]
    subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()[2:]
    return {phase: 1e3 * statistics.median(json.loads(line)[key] for line in lines) for phase, key in PHASES.items()}


def measure(words: list[str], repeats: int, kinds: dict[str, Path]) -> dict[str, dict[str, list[float]]]:
    """Return the milliseconds of all repeats, by kind and phase."""
    times: dict[str, dict[str, list[float]]] = {kind: {phase: [] for phase in PHASES} for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(-1, repeats):
            for kind in list(kinds) if repeat % 2 else reversed(kinds):
                phases = run(kind, kinds[kind], words, Path(folder), f"{kind}{repeat}")
                if repeat >= 0:
                    for phase, value in phases.items():
                        times[kind][phase].append(value)
    return times


def cell(times: dict[str, dict[str, list[float]]], other: str, phase: str) -> str:
    """Return how many times faster kernels are than another kind: median, minimum and maximum over the pairs."""
    ratios = [slow / fast for slow, fast in zip(times[other][phase], times["on"][phase], strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})"


def main() -> None:
    """Measure all workloads, and write the JSON file and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("kernels.json"))
    arguments = parser.parse_args()
    kinds = {"on": HERE, "off": HERE, **({"other": arguments.against} if arguments.against else {})}
    machine = f"{os.cpu_count()} cores, {processor_type(portable=False)}, PyTorch {version('torch')}"
    measured = {}
    for name, words in WORKLOADS.items():
        measured[name] = measure(words, arguments.repeats, kinds)
        print(name, {kind: cell(measured[name], kind, "update") for kind in kinds if kind != "on"}, flush=True)
    arguments.out.write_text(json.dumps({"machine": machine, "milliseconds": measured}, indent=1) + "\n")
    others = {"off": "operation by operation"}
    if arguments.against:
        command = ["git", "-C", str(arguments.against), "rev-parse", "--short", "HEAD"]
        others["other"] = f"version {subprocess.check_output(command, text=True).strip()}"
    columns = [(kind, phase) for kind in others for phase in PHASES]
    rows = [
        f"| {name} | {statistics.median(times['on']['iteration']):.1f} ms | {statistics.median(times['on']['update']):.1f} ms | "
        + " | ".join(cell(times, *column) for column in columns)
        + " |"
        for name, times in measured.items()
    ]
    head = " | ".join(f"{others[kind]}: {phase}" for kind, phase in columns)
    text = f"""# Kernels

    {" ".join(["python benchmarks/kernels.py", *(["--against CHECKOUT"] if arguments.against else [])])}

Time without interpreted kernels, relative to the time with them: median of {arguments.repeats} pairs of runs that alternate, with the least and the greatest
ratio. One rank. {machine}.

| | iteration | update | {head} |
| --- | --- | --- |{" --- |" * len(columns)}
"""
    arguments.out.with_suffix(".md").write_text(text + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
