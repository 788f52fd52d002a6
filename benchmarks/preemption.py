"""Measure what `plan.preempt` regains if one player is slow, and what it costs in returns. Write benchmarks/preemption.json and .md.

    python benchmarks/preemption.py [--seeds 5] [--out benchmarks/preemption.json]

Four ranks play one shard each, and one trains. Environments pause in each step (`straggling_env.py`), so that two cores are enough for all ranks. In each
iteration one player, drawn at random, pauses three times as long. Speeds are steps that were taken per second of training, without the first five
iterations; returns are those of 100 episodes of the trained policy. Runs of a seed follow each other.
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

from straggling_env import SLOWER

from lockstep.run.environment import describe_environment

PLAYERS, SHARE, STEPS, SKIPPED = 4, 0.6, 150_000, 5
RUNS: dict[str, tuple[bool, tuple[str, ...]]] = {
    "no player is slow": (False, ()),
    "one player is slow": (True, ()),
    f"one player is slow, `plan.preempt` {SHARE}": (True, ("--plan.preempt", str(SHARE))),
}
"""By name: whether a player is slow, and flags."""


def measure(slow: bool, flags: tuple[str, ...], seed: int, folder: Path) -> dict[str, float]:
    """Train and evaluate one run. Return steps per second, steps taken, the fraction of steps not taken, and the mean return."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environ = (
        os.environ
        | {"PYTHONPATH": path}
        | ({"STRAGGLING_PLAYERS": " ".join(map(str, range(1, PLAYERS + 1)))} if slow else {})
    )
    lockstep, run = [sys.executable, "-m", "lockstep"], folder / f"{len(list(folder.iterdir()))}"
    words = f"--env Straggling-v0 --env.module straggling_env --plan {PLAYERS}:1 --plan.shards {PLAYERS} --plan.exact false".split()
    words += [
        "--runtime.compile",
        "on",
        "--total-steps",
        str(STEPS),
        "--seed",
        str(seed),
        "--run.progress",
        "off",
        *flags,
    ]
    subprocess.run(
        [*lockstep, "train", *words, "--out", str(folder), "--name", run.name],
        check=True,
        env=environ,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(
        [*lockstep, "eval", str(run), "--episodes", "100", "--env.module", "straggling_env"],
        check=True,
        env=environ,
        stdout=subprocess.DEVNULL,
    )
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, last = rows[SKIPPED - 1], rows[-1]
    return {
        "steps_per_second": (last["env_steps"] - first["env_steps"]) / (last["seconds"] - first["seconds"]),
        "env_steps": last["env_steps"],
        "preempted": statistics.fmean(row.get("preempted", 0.0) for row in rows),
        "return": statistics.fmean(json.loads((run / "evaluation.json").read_text())["returns"]),
    }


def regained(results: dict[str, list[dict[str, float]]]) -> list[float]:
    """Return, for each seed, the fraction of the lost speed that preemption regains."""
    speeds = [[run["steps_per_second"] for run in results[name]] for name in RUNS]
    return [(preempted - slow) / (even - slow) for even, slow, preempted in zip(*speeds, strict=True)]


def page(results: dict[str, list[dict[str, float]]], machine: dict[str, Any]) -> str:
    """Return the Markdown page."""
    lines = [
        f"# Preemption of slow players\n\n    python benchmarks/preemption.py --seeds {len(regained(results))}\n",
        f"Pendulum-v1, {STEPS:,} steps, {PLAYERS} players and 1 trainer on {os.cpu_count()} cores of {machine['processor']}, PyTorch "
        f"{machine['packages']['torch']}. Steps of an environment pause, and those of one player, which is drawn in each iteration, {SLOWER} times as long. "
        "Medians over seeds, with minimum and maximum; a step that was not taken is not counted.\n",
        "| | steps/s | steps not taken | return, mean of 100 episodes |",
        "| --- | --- | --- | --- |",
    ]
    for name, runs in results.items():
        speed, share, score = (
            _spread([run[key] for run in runs]) for key in ("steps_per_second", "preempted", "return")
        )
        lines.append(f"| {name} | {speed} | {share} | {score} |")
    lines.append(f"\nPreemption regains {_spread(regained(results))} of the speed that the slow player costs.\n")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    places = 0 if max(map(abs, values)) >= 10 else 2
    return f"{statistics.median(values):,.{places}f} ({min(values):,.{places}f} … {max(values):,.{places}f})"


def main() -> None:
    """Measure all runs of all seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    machine = describe_environment(PLAYERS + 1)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in RUNS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            for name, (slow, flags) in RUNS.items():
                results[name].append(measure(slow, flags, seed, Path(folder)))
                print(f"seed {seed}, {name}: {results[name][-1]}", flush=True)
            arguments.out.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
            arguments.out.with_suffix(".md").write_text(page(results, machine))
    print(page(results, machine))


if __name__ == "__main__":
    main()
