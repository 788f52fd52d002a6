"""Trains MountainCar-v0 and pendulum-sparse with every method of curiosity and without, and writes benchmarks/curiosity.json and
benchmarks/curiosity.md.

    python benchmarks/curiosity.py [METHOD …] [--task mountaincar] [--seeds 1 2 3 4 5] [--jobs 1] [--out runs/curiosity]

All runs of a task are those of one preset, where nothing but `curiosity.kind` differs. Each is evaluated at the end by `lockstep eval`:
20 episodes that training never saw, with the most probable actions. Methods that are not named keep the rows they have.
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
"""97.5% quantiles of Student's t with 1, 2, … degrees of freedom."""


@dataclass(frozen=True)
class Task:
    """What is trained."""

    preset: str
    flags: tuple[str, ...]
    found: float
    """Mean return of the last 20 episodes from which on something was found."""
    asked: float
    """Mean return in evaluation that is asked for."""
    about: tuple[str, ...]
    """Lines above the table."""
    notes: tuple[str, ...]
    """Lines below."""


TASKS = {
    "mountaincar": Task(
        "mountaincar-rnd",
        (),
        -199,
        -140,
        (
            "# Curiosity on MountainCar-v0",
            "",
            "`python benchmarks/curiosity.py`: the preset `mountaincar-rnd` with nothing but `curiosity.kind` changed, 500,000 steps, one rank.",
            "The reward is -1 for every step, the time limit 200 steps, and nothing is shaped: -200 means that the goal was never reached.",
        ),
        (
            "Plain PPO is not helpless in every setting: where its critic is well conditioned, with `--ppo.normalize-rewards true` say or with the",
            "environment's reward weighted by 0.1, a critic that begins at 0 overrates whatever was rarely seen, and that alone leads to the goal.",
            "The preset is a setting in which it does not: unscaled returns of -87, and an entropy bonus that holds the policy near chance.",
            "Weight and learning rate were chosen for RND; another method may do better with its own.",
        ),
    ),
    "pendulum-sparse": Task(
        "pendulum-sparse",
        ("--curiosity.weight", "0.01"),
        50,
        50,
        (
            "# Curiosity on pendulum-sparse",
            "",
            "`python benchmarks/curiosity.py --task pendulum-sparse`: the preset with `--curiosity.weight 0.01` and each `curiosity.kind`, 150,000",
            "steps, one rank. The reward is 1 while the pendulum is within 15° of upright, else 0; some 75 is the best, chance has 8.",
        ),
        (
            "Here chance meets the reward often enough for plain PPO: the table shows what curiosity costs where it is not needed.",
        ),
    ),
}


def train(name: str, method: str, seed: int, out: Path) -> dict[str, object]:
    """One run on one rank."""
    task, run = TASKS[name], f"{name}-{method}-seed{seed}-{int(time.time())}"
    where = ["--seed", str(seed), "--name", run, "--out", str(out), "--run.progress", "off", "--ranks", "1"]
    call("train", task.preset, "--curiosity.kind", method, *task.flags, *where)
    call("eval", str(out / run), "--episodes", "20")
    rows = [json.loads(line) for line in (out / run / "metrics.jsonl").read_text().splitlines()]
    returns = [(row["env_steps"], row["return_mean_20"]) for row in rows if row["return_mean_20"] is not None]
    found = [steps for steps, mean in returns if mean > task.found]
    evaluation = json.loads((out / run / "evaluation.json").read_text())
    return {
        "task": name,
        "method": method,
        "seed": seed,
        "steps": rows[-1]["env_steps"],
        "found_at": found[0] if found else None,
        "return_mean_20": rows[-1]["return_mean_20"],
        "evaluation": evaluation["return_mean"],
        "fps": statistics.median(row["fps"] for row in rows[5:]),
        "digest": rows[-1]["digest"],
    }


def interval(values: list[float]) -> str:
    """Mean and its 95% interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.0f}"
    half = STUDENT[len(values) - 2] * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.0f} ± {half:.0f}"


def table(rows: list[dict[str, object]], name: str, measured: str) -> str:
    """The part of benchmarks/curiosity.md that is about one task."""
    task = TASKS[name]
    lines = [
        *task.about,
        "Evaluation: 20 episodes per seed that training never saw, with the most probable actions. ± is the 95% interval of the mean over seeds.",
        "",
        measured,
        "",
        f"| method | seeds | evaluation, mean | by seed | better than {task.asked:.0f} | first above {task.found:.0f} in training (steps) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for method in METHODS:
        own = sorted(
            (row for row in rows if (row["task"], row["method"]) == (name, method)),
            key=lambda row: int(str(row["seed"])),
        )
        if not own:
            continue
        values = [float(str(row["evaluation"])) for row in own]
        found = [f"{row['found_at']:,}" if row["found_at"] else "never" for row in own]
        lines.append(
            f"| {method} | {len(own)} | {interval(values)} | {', '.join(f'{value:.0f}' for value in values)} "
            f"| {sum(value > task.asked for value in values)} of {len(own)} | {', '.join(found)} |"
        )
    return "\n".join([*lines, "", *task.notes]) + "\n"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--task", choices=TASKS, default="mountaincar")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/curiosity"))
    own = parser.parse_args()
    path = HERE / "curiosity.json"
    known = json.loads(path.read_text()) if path.exists() else {"rows": []}
    with ThreadPoolExecutor(own.jobs) as pool:
        wanted = [(own.task, method, seed) for seed in own.seeds for method in own.methods]
        made = list(pool.map(lambda one: train(*one, own.out), wanted))
    rows = [row for row in known["rows"] if (row["task"], row["method"], row["seed"]) not in wanted] + made
    versions = f"PyTorch {torch.__version__}"
    path.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")
    measured = f"Measured with {versions}, {time.strftime('%Y-%m')}."
    parts = [table(rows, name, measured) for name in TASKS if any(row["task"] == name for row in rows)]
    (HERE / "curiosity.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
