"""Measure the seconds from the shell prompt to a goal, start and end of the process included. Write benchmarks/threshold.json and .md.

    python benchmarks/threshold.py [ENV …] [--seeds 1 2 3] [--python PATH] [--ranks N]

lockstep trains with its default settings. The goal is for the mean return of the last 20 training episodes. lockstep trains the whole budget; the time
after the goal was reached is subtracted. `--python` names an interpreter with stable-baselines3. It is then run after each seed, with the
hyperparameters of rl-baselines3-zoo, in one process with one thread, for at most 240 s.
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
from typing import NamedTuple

HERE = Path(__file__).parent
LIMIT = 240


class Task(NamedTuple):
    """Goal of an environment, and the budget of lockstep."""

    goal: float
    steps: int


TASKS = {
    "CartPole-v1": Task(475, 100_000),
    "Pendulum-v1": Task(-200, 200_000),
    "Reacher-v5": Task(-6, 500_000),
    "LunarLander-v3": Task(200, 500_000),
}


def run_lockstep(env_id: str, seed: int, ranks: int | None) -> dict[str, object]:
    """Train with the default settings once and return seconds and steps to the goal."""
    goal, steps = TASKS[env_id]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lockstep", "train", "--env", env_id, "--total-steps", str(steps)]
        command += ["--seed", str(seed), "--name", "run", "--out", folder, "--run.progress", "off"]
        command += ["--ranks", str(ranks)] if ranks else []
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        total = time.perf_counter() - start
        rows = [json.loads(line) for line in Path(folder, "run/metrics.jsonl").read_text().splitlines()]
    goal_row = next((row for row in rows if row["return_mean_20"] is not None and row["return_mean_20"] >= goal), None)
    after_goal = 0 if goal_row is None else rows[-1]["seconds"] - goal_row["seconds"]
    return {
        "goal": goal,
        "seed": seed,
        "seconds": None if goal_row is None else round(total - after_goal, 2),
        "steps": None if goal_row is None else goal_row["env_steps"],
        "start_and_end": round(total - rows[-1]["seconds"], 2),
    }


def run_sb3(python: str, environment: str, goal: float, seed: int) -> dict[str, object]:
    """Run Stable-Baselines3 once and return seconds and steps to the goal."""
    words = [python, str(HERE / "threshold_sb3.py"), "--env", environment, "--goal", str(goal), "--seed", str(seed)]
    start = time.perf_counter()
    finished = subprocess.run(
        [*words, "--seconds", str(LIMIT)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    seconds = time.perf_counter() - start
    result = json.loads(finished.stdout.splitlines()[-1])
    return {"seed": seed, "seconds": round(seconds, 2) if result["reached"] else None, "steps": result["steps"]}


def page(results: dict[str, dict[str, list[dict[str, object]]]], command: str) -> str:
    """Return the Markdown page."""
    lines = [
        "# Time from the shell prompt to a goal",
        "",
        f"    {command}",
        "",
        "Seconds of the whole process until the mean return of the last 20 training episodes reached the goal, with kernels in the cache. Medians",
        "over the seeds, and the value of each seed. `threshold.json` has all numbers and the versions.",
        "",
        "| environment | goal | lockstep (defaults) | steps | Stable-Baselines3 (zoo) | steps |",
        "| --- | ---: | --- | --- | --- | --- |",
    ]
    for env_id, runs in results.items():
        goal = runs["lockstep"][0]["goal"]
        cells = [
            f"{_seconds(runs[program])} | {_steps(runs[program])}"
            for program in ("lockstep", "stable-baselines3")
            if program in runs
        ]
        lines.append(f"| {env_id} | {goal:g} | " + " | ".join(cells) + (" |" if len(cells) == 2 else " | not run | |"))
    return "\n".join(lines) + "\n"


def _seconds(runs: list[dict[str, object]]) -> str:
    times = [float("inf") if run["seconds"] is None else float(str(run["seconds"])) for run in runs]
    words = [f"{seconds:.1f}" if seconds < LIMIT else f"not in {LIMIT}" for seconds in times]
    median = statistics.median(times)
    return f"**{median:.1f} s** ({', '.join(words)})" if median < LIMIT else f"**–** ({', '.join(words)})"


def _steps(runs: list[dict[str, object]]) -> str:
    return ", ".join(f"{run['steps']:,}" if run["steps"] else "–" for run in runs)


def main() -> None:
    """Run the requested environments, one process after the other, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", default=list(TASKS), metavar="ENV", help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--python", metavar="PATH")
    parser.add_argument("--ranks", type=int)
    arguments = parser.parse_args()
    path = HERE / "threshold.json"
    stored = json.loads(path.read_text())["runs"] if path.exists() else {}
    results = {env_id: runs for env_id, runs in stored.items() if env_id in TASKS}
    for env_id in arguments.environments:
        run_lockstep(env_id, 1, arguments.ranks)  # fills the cache of compiled kernels
        runs: dict[str, list[dict[str, object]]] = {"lockstep": []} | (
            {"stable-baselines3": []} if arguments.python else {}
        )
        for seed in arguments.seeds:
            runs["lockstep"].append(run_lockstep(env_id, seed, arguments.ranks))
            if arguments.python:
                runs["stable-baselines3"].append(run_sb3(arguments.python, env_id, TASKS[env_id].goal, seed))
            print(env_id, {program: finished[-1] for program, finished in runs.items()}, flush=True)
        results[env_id] = runs
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        versions = {name: version(name) for name in ("torch", "numpy", "gymnasium")}
        path.write_text(json.dumps({"machine": machine, "versions": versions, "runs": results}, indent=1) + "\n")
        (HERE / "threshold.md").write_text(page(results, "python benchmarks/threshold.py --python PATH"))


if __name__ == "__main__":
    main()
