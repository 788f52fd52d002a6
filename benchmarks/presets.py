"""Trains every preset on three seeds, and writes benchmarks/presets.json and benchmarks/presets.md.

    python benchmarks/presets.py [PRESET …] [--seeds 1 2 3] [--jobs 1] [--out runs/presets]

Presets that are not named keep the rows they have. Each run is `lockstep train PRESET --seed S`, so that presets that are cut in shards
use several cores. A preset with memory is evaluated at the end, and trained and evaluated once more without its memory. A row that came
about in another way says how in its `note`, which the page shows below its tables.
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
from lockstep.config.compose import load

HERE = Path(__file__).parent
WITHOUT_MEMORY = ["--policy.core", "none", "--rollout.sequence-length", "none"]


def call(*arguments: str) -> None:
    """Runs `lockstep` from the shell's point of view, and ends if it does not succeed."""
    command = [sys.executable, "-m", "lockstep", *arguments]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    if finished.returncode:
        raise SystemExit(f"lockstep {' '.join(arguments)} ended with {finished.returncode}: {finished.stderr}")


def has_memory(preset: str) -> bool:
    """Whether its policy has a core."""
    return load(presets.read(preset), None, {}).policy.core != "none"


def evaluate(folder: Path) -> dict[str, object]:
    """20 episodes with the most probable actions: their mean return, and half of its 95% interval."""
    call("eval", str(folder), "--episodes", "20")
    found = json.loads((folder / "evaluation.json").read_text())
    return {"mean": found["return_mean"], "interval_95": found["return_interval_95"]}


def train(preset: str, seed: int, out: Path, forgets: bool = False) -> dict[str, object]:
    """One run, of which `seconds` include starting Python. `forgets`: without the preset's memory."""
    name = f"{preset}-{'forgets-' if forgets else ''}seed{seed}-{int(time.time())}"
    where = ["--seed", str(seed), "--name", name, "--out", str(out), "--run.progress", "off"]
    begun = time.perf_counter()
    call("train", preset, *where, *(WITHOUT_MEMORY if forgets else []))
    seconds = time.perf_counter() - begun
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
    if has_memory(preset):
        row |= {"forgets": forgets, "evaluation": evaluate(out / name)}
    shown = ("preset", "forgets", "seed", "goal", "final", "evaluation", "reached_at_steps", "seconds")
    print({key: row[key] for key in shown if key in row}, flush=True)
    return row


def table(rows: list[dict[str, object]], command: str) -> str:
    """The Markdown page."""
    whole = [row for row in rows if not row.get("forgets")]
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
    for preset in sorted({str(row["preset"]) for row in whole}):
        those = sorted((row for row in whole if row["preset"] == preset), key=lambda row: int(str(row["seed"])))
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
    notes = sorted({f"`{row['preset']}`: {row['note']}" for row in rows if "note" in row})
    return "\n".join(lines + memory_table(rows) + [line for note in notes for line in ("", note)]) + "\n"


def memory_table(rows: list[dict[str, object]]) -> list[str]:
    """What presets with memory reach, and what is left of it without."""
    lines = [
        "",
        "## With memory and without",
        "",
        "Mean return of 20 episodes that training never saw (`lockstep eval RUN --episodes 20`, most probable actions), ± half of its 95%",
        f"interval, per seed. Without: the same command with `{' '.join(WITHOUT_MEMORY)}`. Seconds: of the whole command.",
        "",
        "| preset | with memory | seconds | without | seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for preset in sorted({str(row["preset"]) for row in rows if "evaluation" in row}):
        cells = []
        for forgets in (False, True):
            those = [row for row in rows if row["preset"] == preset and row.get("forgets") is forgets]
            those.sort(key=lambda row: int(str(row["seed"])))
            cells.append(", ".join(interval(row["evaluation"]) for row in those))
            cells.append(", ".join(f"{row['seconds']:.0f}" for row in those))
        lines.append(f"| `{preset}` | {' | '.join(cells)} |")
    return lines


def interval(evaluation: object) -> str:
    """`-155.8 ± 41.9`."""
    assert isinstance(evaluation, dict)
    return f"{evaluation['mean']:,.4g} ± {evaluation['interval_95']:.3g}"


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
    work = [
        (preset, seed, own.out, forgets)
        for preset in own.presets
        for forgets in ((False, True) if has_memory(preset) else (False,))
        for seed in own.seeds
    ]
    with ThreadPoolExecutor(own.jobs) as pool:
        rows = kept + list(pool.map(lambda item: train(*item), work))
    rows.sort(key=lambda row: (row["preset"], row.get("forgets", False), row["seed"]))
    path.write_text(json.dumps(rows, indent=1) + "\n")
    (HERE / "presets.md").write_text(table(rows, "python benchmarks/presets.py"))


if __name__ == "__main__":
    main()
