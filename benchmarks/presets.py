"""Trains every preset on three seeds, and writes benchmarks/presets.json and benchmarks/presets.md.

    python benchmarks/presets.py [PRESET …] [--seeds 1 2 3] [--jobs 1] [--out runs/presets]

Presets that are not named keep the rows they have. Each run is `lockstep train PRESET --seed S`, so that presets that are cut in shards
use several cores.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lockstep import presets

HERE = Path(__file__).parent


def train(preset: str, seed: int, out: Path) -> dict[str, object]:
    """One run from the shell's point of view: seconds include starting Python."""
    name = f"{preset}-seed{seed}-{int(time.time())}"
    command = [
        "lockstep",
        "train",
        preset,
        "--seed",
        str(seed),
        "--name",
        name,
        "--out",
        str(out),
        "--run.progress",
        "off",
    ]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    begun = time.perf_counter()
    finished = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, env=environ
    )
    seconds = time.perf_counter() - begun
    if finished.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {finished.returncode}: {finished.stderr}")
    rows = [json.loads(line) for line in (out / name / "metrics.jsonl").read_text().splitlines()]
    config = json.loads((out / name / "config.json").read_text())
    goal = config["run"]["solved_return"]
    reached = [row for row in rows if row["return_mean_20"] is not None and row["return_mean_20"] >= goal]
    row = {
        "preset": preset,
        "environment": config["env"]["id"],
        "engine": config["env"]["engine"],
        "seed": seed,
        "goal": goal,
        "steps": rows[-1]["env_steps"],
        "final": rows[-1]["return_mean_20"],
        "reached_at_steps": reached[0]["env_steps"] if reached else None,
        "reached_at_seconds": round(reached[0]["seconds"], 1) if reached else None,
        "seconds": round(seconds, 1),
        "digest": rows[-1]["digest"],
        "packages": json.loads((out / name / "environment.json").read_text())["packages"],
    }
    print({key: row[key] for key in ("preset", "seed", "goal", "final", "reached_at_steps", "seconds")}, flush=True)
    return row


def table(rows: list[dict[str, object]], command: str) -> str:
    """The Markdown page."""
    lines = [
        "# Presets on three seeds",
        "",
        f"Made by `{command}`; raw numbers and versions are in `presets.json`. Return: mean of the last 20 episodes. Goal reached:",
        "environment steps, and seconds of training, after which that mean first was at least the goal.",
        f"One run at a time, on {os.cpu_count()} cores, which presets that are cut in shards use. Start and compiling are not in the seconds.",
        "",
        "| preset | environment | steps | goal | return at the end, per seed | goal reached after steps | after seconds |",
        "| --- | --- | ---: | ---: | --- | --- | --- |",
    ]
    for preset in sorted({str(row["preset"]) for row in rows}):
        those = sorted((row for row in rows if row["preset"] == preset), key=lambda row: int(str(row["seed"])))
        first = those[0]
        final = ", ".join(
            f"{row['final']:,.4g}" if abs(float(str(row["final"]))) < 1e4 else f"{row['final']:,.0f}" for row in those
        )
        steps = ", ".join(
            "never" if row["reached_at_steps"] is None else f"{row['reached_at_steps']:,}" for row in those
        )
        seconds = ", ".join(
            "never" if row["reached_at_seconds"] is None else f"{row['reached_at_seconds']:g}" for row in those
        )
        budget = max(int(str(row["steps"])) for row in those)
        lines.append(
            f"| `{preset}` | {first['environment']} | {budget:,} | {first['goal']:,g} | {final} | {steps} | {seconds} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="*", default=presets.names())
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/presets"))
    own = parser.parse_args()
    path = HERE / "presets.json"
    kept = [row for row in json.loads(path.read_text()) if row["preset"] not in own.presets] if path.exists() else []
    work = [(preset, seed, own.out) for preset in own.presets for seed in own.seeds]
    with ThreadPoolExecutor(own.jobs) as pool:
        rows = kept + list(pool.map(lambda item: train(*item), work))
    rows.sort(key=lambda row: (row["preset"], row["seed"]))
    path.write_text(json.dumps(rows, indent=1) + "\n")
    (HERE / "presets.md").write_text(table(rows, "python benchmarks/presets.py"))


if __name__ == "__main__":
    main()
