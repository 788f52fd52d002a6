"""Train on MountainCar-v0 and pendulum-sparse with every curiosity method and without curiosity. Write benchmarks/curiosity.json and
benchmarks/curiosity.md.

    python benchmarks/curiosity.py [METHOD …] [--task mountaincar] [--seeds 1 2 3 4 5] [--jobs 1] [--out runs/curiosity]

All runs of a task have the same settings, and differ only in `curiosity.kind`. Each run is evaluated at the end by `lockstep eval`: 20 episodes that are not used
in training, with the most probable actions. Methods that are not named keep their rows in the file.
"""

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from presets import call

HERE = Path(__file__).parent
METHODS = ("none", "icm", "rnd", "ngu", "e3b", "re3", "disagreement")
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""97.5% quantiles of Student's t distribution with 1, 2, … degrees of freedom."""


@dataclass(frozen=True)
class Task:
    """Settings of a task, with thresholds and the text around its table."""

    settings: tuple[str, ...]
    """Arguments of `lockstep train`."""
    discovery_return: float
    """Mean return of the last 20 training episodes above which the reward was discovered."""
    goal_return: float
    """Mean return in evaluation that counts as success."""
    introduction: tuple[str, ...]
    """Lines above the table."""
    notes: tuple[str, ...]
    """Lines below the table."""


TASKS = {
    "mountaincar": Task(
        ("--config", str(HERE / "mountaincar_rnd.yaml")),
        -199,
        -140,
        (
            "# Curiosity on MountainCar-v0",
            "",
            "`python benchmarks/curiosity.py`: the settings of `benchmarks/mountaincar_rnd.yaml` with each `curiosity.kind`, 500,000 steps, one rank.",
            "The reward is -1 for every step, without reward shaping, and the time limit is 200 steps: -200 means that the goal was never reached.",
        ),
        (
            "PPO without curiosity does not fail in every setting: the default settings solve this task. If the critic is well conditioned, for example with `--ppo.normalize-rewards true` or with",
            "the environment's reward weighted by 0.1, a critic that starts at 0 overestimates states that were rarely seen, and this alone leads the car to the goal.",
            "The file has settings in which it fails: unscaled returns of -87, and an entropy bonus that keeps the policy near random.",
            "The weight and the learning rate were chosen for RND; other methods may do better with other values.",
        ),
    ),
    "pendulum-sparse": Task(
        ("pendulum-sparse", "--curiosity.weight", "0.01"),
        50,
        50,
        (
            "# Curiosity on pendulum-sparse",
            "",
            "`python benchmarks/curiosity.py --task pendulum-sparse`: the preset with `--curiosity.weight 0.01` and each `curiosity.kind`, 150,000",
            "steps, one rank. The reward is 1 while the pendulum is within 15° of upright, else 0. The best return is about 75; a random policy has 8.",
        ),
        (
            "Here random actions reach the reward often enough that PPO needs no curiosity: the table shows the cost of curiosity where it is not needed.",
        ),
    ),
}


def train(name: str, method: str, seed: int, out: Path) -> dict[str, object]:
    """Train one run on one rank, evaluate it, and return its row."""
    task, run_name = TASKS[name], f"{name}-{method}-seed{seed}-{int(time.time())}"
    options = ["--seed", str(seed), "--name", run_name, "--out", str(out), "--run.progress", "off", "--ranks", "1"]
    call("train", *task.settings, "--curiosity.kind", method, *options)
    call("eval", str(out / run_name), "--episodes", "20")
    rows = [json.loads(line) for line in (out / run_name / "metrics.jsonl").read_text().splitlines()]
    returns = [(row["env_steps"], row["return_mean_20"]) for row in rows if row["return_mean_20"] is not None]
    discoveries = [steps for steps, mean in returns if mean > task.discovery_return]
    evaluation = json.loads((out / run_name / "evaluation.json").read_text())
    return {
        "task": name,
        "method": method,
        "seed": seed,
        "steps": rows[-1]["env_steps"],
        "found_at": discoveries[0] if discoveries else None,
        "return_mean_20": rows[-1]["return_mean_20"],
        "evaluation": evaluation["return_mean"],
        "fps": statistics.median(row["fps"] for row in rows[5:]),
        "digest": rows[-1]["digest"],
    }


def interval(values: list[float]) -> str:
    """Format the mean of `values` with half of its 95% interval, for example `-117 ± 4`."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.0f}"
    half = STUDENT[len(values) - 2] * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.0f} ± {half:.0f}"


def table(rows: list[dict[str, object]], name: str, measured: str) -> str:
    """Return the section of benchmarks/curiosity.md for one task, as Markdown."""
    task = TASKS[name]
    lines = [
        *task.introduction,
        "Evaluation: 20 episodes per seed that are not used in training, with the most probable actions. ± is half of the 95% interval of the mean over seeds.",
        "",
        measured,
        "",
        f"| method | seeds | evaluation, mean | per seed | above {task.goal_return:.0f} | steps until above {task.discovery_return:.0f} in training |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for method in METHODS:
        method_rows = sorted(
            (row for row in rows if (row["task"], row["method"]) == (name, method)),
            key=lambda row: int(str(row["seed"])),
        )
        if not method_rows:
            continue
        values = [float(str(row["evaluation"])) for row in method_rows]
        discoveries = [f"{row['found_at']:,}" if row["found_at"] else "never" for row in method_rows]
        lines.append(
            f"| {method} | {len(method_rows)} | {interval(values)} | {', '.join(f'{value:.0f}' for value in values)} "
            f"| {sum(value > task.goal_return for value in values)} of {len(method_rows)} | {', '.join(discoveries)} |"
        )
    return "\n".join([*lines, "", *task.notes]) + "\n"


def main() -> None:
    """Train and evaluate the requested runs, then write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--task", choices=TASKS, default="mountaincar")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/curiosity"))
    arguments = parser.parse_args()
    path = HERE / "curiosity.json"
    previous = json.loads(path.read_text()) if path.exists() else {"rows": []}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        requested = [(arguments.task, method, seed) for seed in arguments.seeds for method in arguments.methods]
        new_rows = list(pool.map(lambda key: train(*key, arguments.out), requested))
    rows = [row for row in previous["rows"] if (row["task"], row["method"], row["seed"]) not in requested]
    rows += new_rows
    versions = f"PyTorch {torch.__version__}"
    path.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")
    measured = f"Measured with {versions}, {time.strftime('%Y-%m')}."
    parts = [table(rows, name, measured) for name in TASKS if any(row["task"] == name for row in rows)]
    (HERE / "curiosity.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
