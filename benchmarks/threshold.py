"""Seconds from the shell prompt to a goal: the whole process, start and end included. Writes benchmarks/threshold.json and .md.

    python benchmarks/threshold.py [PRESET …] [--seeds 1 2 3] [--python PATH] [--ranks N]

The goal is the preset's: the mean return of the last 20 training episodes. lockstep trains the whole budget of a preset; what it did
after the goal was reached is subtracted. `--python` names an interpreter with stable-baselines3, which is then run beside it, seed by seed,
with the hyperparameters of rl-baselines3-zoo, one process and one thread, for 240 s at most.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
PRESETS = ("cartpole", "pendulum", "reacher", "lunarlander")
LIMIT = 240


def ours(preset: str, seed: int, ranks: int | None) -> dict[str, object]:
    """One run of a preset."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            sys.executable,
            "-m",
            "lockstep",
            "train",
            preset,
            "--seed",
            str(seed),
            "--name",
            "run",
            "--out",
            folder,
        ]
        words += ["--run.progress", "off", *(["--ranks", str(ranks)] if ranks else [])]
        begun = time.perf_counter()
        subprocess.run(words, check=True, capture_output=True)
        whole = time.perf_counter() - begun
        rows = [json.loads(line) for line in Path(folder, "run/metrics.jsonl").read_text().splitlines()]
        config = json.loads(Path(folder, "run/config.json").read_text())
    goal = config["run"]["solved_return"]
    at = next((row for row in rows if row["return_mean_20"] is not None and row["return_mean_20"] >= goal), None)
    left = 0 if at is None else rows[-1]["seconds"] - at["seconds"]
    return {
        "environment": config["env"]["id"],
        "goal": goal,
        "seed": seed,
        "seconds": None if at is None else round(whole - left, 2),
        "steps": None if at is None else at["env_steps"],
        "start_and_end": round(whole - rows[-1]["seconds"], 2),
    }


def theirs(python: str, environment: str, goal: float, seed: int) -> dict[str, object]:
    """One run of Stable-Baselines3."""
    words = [python, str(HERE / "threshold_sb3.py"), "--env", environment, "--goal", str(goal), "--seed", str(seed)]
    begun = time.perf_counter()
    finished = subprocess.run(
        [*words, "--seconds", str(LIMIT)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    seconds = time.perf_counter() - begun
    found = json.loads(finished.stdout.splitlines()[-1])
    return {"seed": seed, "seconds": round(seconds, 2) if found["reached"] else None, "steps": found["steps"]}


def page(found: dict[str, dict[str, list[dict[str, object]]]], command: str) -> str:
    """The Markdown page."""
    lines = [
        "# From the shell prompt to the goal",
        "",
        f"Made by `{command}`; raw numbers and versions are in `threshold.json`. Seconds of the whole process until the mean return of the",
        "last 20 training episodes reached the preset's goal, kernels being in the cache; median of the seeds, and all of them.",
        "",
        "| preset | goal | lockstep | steps | Stable-Baselines3 (zoo) | steps |",
        "| --- | ---: | --- | --- | --- | --- |",
    ]
    for preset, runs in found.items():
        goal = runs["lockstep"][0]["goal"]
        cells = [
            f"{_seconds(runs[who])} | {_steps(runs[who])}" for who in ("lockstep", "stable-baselines3") if who in runs
        ]
        lines.append(
            f"| `{preset}` | {goal:g} | " + " | ".join(cells) + (" |" if len(cells) == 2 else " | not run | |")
        )
    return "\n".join(lines) + "\n"


def _seconds(runs: list[dict[str, object]]) -> str:
    each = [float("inf") if run["seconds"] is None else float(str(run["seconds"])) for run in runs]
    words = [f"{seconds:.1f}" if seconds < LIMIT else f"not in {LIMIT}" for seconds in each]
    middle = statistics.median(each)
    return f"**{middle:.1f} s** ({', '.join(words)})" if middle < LIMIT else f"**–** ({', '.join(words)})"


def _steps(runs: list[dict[str, object]]) -> str:
    return ", ".join(f"{run['steps']:,}" if run["steps"] else "–" for run in runs)


def main() -> None:
    """Runs what was asked for, one process after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="*", default=PRESETS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--python", metavar="PATH")
    parser.add_argument("--ranks", type=int)
    own = parser.parse_args()
    path = HERE / "threshold.json"
    found = json.loads(path.read_text())["runs"] if path.exists() else {}
    for preset in own.presets:
        ours(preset, 1, own.ranks)  # fills the cache
        runs: dict[str, list[dict[str, object]]] = {"lockstep": []} | ({"stable-baselines3": []} if own.python else {})
        for seed in own.seeds:
            run = ours(preset, seed, own.ranks)
            runs["lockstep"].append(run)
            if own.python:
                goal = float(str(run["goal"]))
                runs["stable-baselines3"].append(theirs(own.python, str(run["environment"]), goal, seed))
            print(preset, {who: those[-1] for who, those in runs.items()}, flush=True)
        found[preset] = runs
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        versions = {name: version(name) for name in ("torch", "numpy", "gymnasium")}
        path.write_text(json.dumps({"machine": machine, "versions": versions, "runs": found}, indent=1) + "\n")
        (HERE / "threshold.md").write_text(page(found, "python benchmarks/threshold.py --python PATH"))


if __name__ == "__main__":
    main()
