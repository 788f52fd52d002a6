"""Measure the gain of `plan.lag`: environment steps per second of one player and one trainer with lag 0 and 1, and of two coupled ranks.

    python benchmarks/lag.py [--out benchmarks/lag.json] [--repeats 5] [--iterations 14]
    python benchmarks/lag.py --learning [--out benchmarks/lag_learning.json]

Whole runs through the command line, two processes each. Repeats are the outer loop and the order is reversed in every other repeat, so that other load on
the machine affects all runs equally; ratios are computed within a repeat. The speed is computed from the metrics, without the first two iterations.

`--learning` measures the cost of lag: the steps after which presets reach their goal, per seed, without lag, with lag, and with V-trace. (Each run has one
rank; the digests do not depend on the plan.)
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from lockstep.bench.workloads import PLAIN

TASKS = {
    "HalfCheetah-v5": (
        "--env",
        "HalfCheetah-v5",
        "--rollout.steps",
        "256",
        "--ppo.epochs",
        "5",
        "--ppo.minibatches",
        "16",
    ),
    "HumanoidStandup-v5": (
        "--env",
        "HumanoidStandup-v5",
        "--rollout.steps",
        "128",
        "--ppo.epochs",
        "4",
        "--ppo.minibatches",
        "8",
    ),
    "LunarLander-v3": (
        "--env",
        "LunarLander-v3",
        "--rollout.steps",
        "512",
        "--ppo.epochs",
        "10",
        "--ppo.minibatches",
        "8",
    ),
}
PLANS = {
    "lag 0": ("--plan", "1:1"),
    "lag 1": ("--plan", "1:1", "--plan.lag", "1"),
    "coupled": ("--plan", "coupled", "--ranks", "2"),
}
SHARED = ("--env.engine", "gymnasium", "--env.count", "8", "--plan.shards", "2", "--run.progress", "off", *PLAIN)


def measure(task: str, plan: str, iterations: int, out: Path) -> dict[str, float]:
    """Train one run. Return its speed, and the fractions of their time that trainer and player wait."""
    steps = 8 * int(TASKS[task][TASKS[task].index("--rollout.steps") + 1])
    name = f"{len(list(out.glob('*')))}"
    words = [*TASKS[task], *SHARED, *PLANS[plan], "--total-steps", str(iterations * steps), "--name", name]
    subprocess.run(
        [sys.executable, "-m", "lockstep", "train", *words, "--out", str(out)], check=True, capture_output=True
    )
    rows = [json.loads(line) for line in (out / name / "metrics.jsonl").read_text().splitlines()][2:]

    def total(key: str) -> float:
        return float(sum(row.get(key, 0) for row in rows))

    result = {"steps_per_second": sum(row["fps"] * row["t_iter"] for row in rows) / total("t_iter")}
    result["trainer_waits"] = total("t_wait") / total("t_iter")
    if plan != "coupled":
        result["player_waits"] = total("player_t_wait") / total("player_t_iter")
    return result


def learning(out: Path) -> dict[str, dict[str, dict[str, int | None]]]:
    """Return the steps to the goal by preset, variant and seed; None if the budget of the preset was not enough."""
    variants = {
        "lag 0": (),
        "lag 1": ("--plan.lag", "1"),
        "lag 1, vtrace": ("--plan.lag", "1", "--plan.correction", "vtrace"),
    }
    steps_to_goal: dict[str, dict[str, dict[str, int | None]]] = {}
    for preset in ("cartpole", "pendulum", "pendulum-dense"):
        for seed in ("1", "2", "3"):
            for variant, flags in variants.items():
                name = f"{len(list(out.glob('*')))}"
                command = [sys.executable, "-m", "lockstep", "train", preset, "--seed", seed, *flags, "--name", name]
                subprocess.run([*command, "--run.progress", "off", "--out", str(out)], check=True, capture_output=True)
                goal = json.loads((out / name / "config.json").read_text())["run"]["solved_return"]
                rows = [json.loads(line) for line in (out / name / "metrics.jsonl").read_text().splitlines()]
                reached = [row["env_steps"] for row in rows if (row["return_mean_20"] or -1e9) >= goal]
                steps = steps_to_goal.setdefault(preset, {}).setdefault(variant, {})
                steps[seed] = reached[0] if reached else None
                print(f"{preset} seed {seed} {variant}: {reached[:1]}", file=sys.stderr, flush=True)
    return steps_to_goal


def summary(rates: dict[str, list[dict[str, float]]]) -> dict[str, object]:
    """Return medians, and medians, minimum and maximum of ratios within a repeat."""
    result: dict[str, object] = {}
    for plan, runs in rates.items():
        result[plan] = {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}
    for numerator, denominator in (("lag 1", "lag 0"), ("coupled", "lag 1")):
        pairs = zip(rates[numerator], rates[denominator], strict=True)
        ratios = [above["steps_per_second"] / below["steps_per_second"] for above, below in pairs]
        result[f"{numerator} / {denominator}"] = {
            "median": round(statistics.median(ratios), 3),
            "least": round(min(ratios), 3),
            "most": round(max(ratios), 3),
        }
    return result


def speeds(tasks: list[str], repeats: int, iterations: int, out: Path) -> dict[str, dict[str, object]]:
    """Measure all plans of all tasks and return the `summary` of each task."""
    rates: dict[str, dict[str, list[dict[str, float]]]] = {task: {plan: [] for plan in PLANS} for task in tasks}
    for repeat in range(repeats):
        for task in tasks:
            for plan in list(PLANS) if repeat % 2 == 0 else reversed(PLANS):
                rates[task][plan].append(measure(task, plan, iterations, out))
                rate = rates[task][plan][-1]["steps_per_second"]
                print(f"repeat {repeat + 1}: {task} {plan} {rate:,.0f}", file=sys.stderr, flush=True)
    return {task: summary(rates[task]) for task in rates}


def main() -> None:
    """Measure speed or learning and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(TASKS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=14)
    parser.add_argument("--learning", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.learning:
            measured: dict[str, object] = {"presets": learning(Path(folder))}
        else:
            tasks = speeds(arguments.only, arguments.repeats, arguments.iterations, Path(folder))
            measured = {"repeats": arguments.repeats, "tasks": tasks}
    result = {
        "command": "python benchmarks/lag.py " + " ".join(sys.argv[1:]),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in ("torch", "numpy", "gymnasium", "mujoco", "Box2D")},
        **measured,
    }
    name = "lag_learning.json" if arguments.learning else "lag.json"
    (arguments.out or Path(__file__).with_name(name)).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
