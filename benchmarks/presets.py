"""Train every preset that has an environment with three seeds. Write benchmarks/presets.json and benchmarks/presets.md.

    python benchmarks/presets.py [PRESET …] [--seeds 1 2 3] [--jobs 1] [--out runs/presets]

Presets that are not named keep their rows in the file. Each run is `lockstep train PRESET --seed S`, so presets with several shards use several cores. A preset
with memory is evaluated at the end, then trained and evaluated again without memory. A row that was measured in another way says so in its `note`, which
the page shows below its tables.
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
    """Run the command `lockstep` in a subprocess. Raises SystemExit if it fails."""
    command = [sys.executable, "-m", "lockstep", *arguments]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    if finished.returncode:
        raise SystemExit(f"lockstep {' '.join(arguments)} ended with {finished.returncode}: {finished.stderr}")


def has_memory(preset: str) -> bool:
    """Return whether the policy of the preset has a core."""
    return load(presets.read(preset), None, {}).policy.core != "none"


def evaluate(folder: Path) -> dict[str, object]:
    """Evaluate 20 episodes with the most probable actions. Return the mean return and half of its 95% interval."""
    call("eval", str(folder), "--episodes", "20")
    evaluation = json.loads((folder / "evaluation.json").read_text())
    return {"mean": evaluation["return_mean"], "interval_95": evaluation["return_interval_95"]}


def train(preset: str, seed: int, out: Path, forgets: bool = False) -> dict[str, object]:
    """Train one run and return its row; `seconds` includes the start of Python. `forgets` trains without the memory of the preset."""
    name = f"{preset}-{'forgets-' if forgets else ''}seed{seed}-{int(time.time())}"
    options = ["--seed", str(seed), "--name", name, "--out", str(out), "--run.progress", "off"]
    start = time.perf_counter()
    call("train", preset, *options, *(WITHOUT_MEMORY if forgets else []))
    seconds = time.perf_counter() - start
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
    """Return the Markdown page."""
    default_rows = [row for row in rows if not row.get("forgets")]
    lines = [
        "# Results of presets on three seeds",
        "",
        f"    {command}",
        "",
        "Returns are means of the last 20 training episodes. `goal reached` is the number of environment steps, and of seconds of training, after which this mean",
        f"first was at least the goal. One run at a time on {os.cpu_count()} cores, which presets with several shards use. The seconds do not include the start of the",
        "process or compilation. `presets.json` has all numbers and the versions.",
        "",
        "| preset | environment | steps | goal | final return, per seed | goal reached: steps | goal reached: seconds |",
        "| --- | --- | ---: | ---: | --- | --- | --- |",
    ]
    for preset in sorted({str(row["preset"]) for row in default_rows}):
        seed_rows = sorted(
            (row for row in default_rows if row["preset"] == preset), key=lambda row: int(str(row["seed"]))
        )
        first = seed_rows[0]
        final = ", ".join(
            f"{row['final']:,.4g}" if abs(float(str(row["final"]))) < 1e4 else f"{row['final']:,.0f}"
            for row in seed_rows
        )
        steps = ", ".join(
            "never" if row["reached_at_steps"] is None else f"{row['reached_at_steps']:,}" for row in seed_rows
        )
        seconds = ", ".join(
            "never" if row["reached_at_seconds"] is None else f"{row['reached_at_seconds']:g}" for row in seed_rows
        )
        budget = max(int(str(row["steps"])) for row in seed_rows)
        lines.append(
            f"| `{preset}` | {first['environment']} | {budget:,} | {first['goal']:,g} | {final} | {steps} | {seconds} |"
        )
    notes = sorted({f"`{row['preset']}`: {row['note']}" for row in rows if "note" in row})
    return "\n".join(lines + memory_table(rows) + [line for note in notes for line in ("", note)]) + "\n"


def memory_table(rows: list[dict[str, object]]) -> list[str]:
    """Return the table that compares presets with memory and without, as Markdown lines."""
    lines = [
        "",
        "## Presets with and without memory",
        "",
        "Mean return of 20 episodes that are not used in training (`lockstep eval RUN --episodes 20`, most probable actions), ± half of its 95%",
        f"interval, per seed. Runs without memory have `{' '.join(WITHOUT_MEMORY)}`. The seconds are the duration of the whole `train` command.",
        "",
        "| preset | with memory | seconds | without memory | seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for preset in sorted({str(row["preset"]) for row in rows if "evaluation" in row}):
        cells = []
        for forgets in (False, True):
            seed_rows = [row for row in rows if row["preset"] == preset and row.get("forgets") is forgets]
            seed_rows.sort(key=lambda row: int(str(row["seed"])))
            cells.append(", ".join(interval(row["evaluation"]) for row in seed_rows))
            cells.append(", ".join(f"{row['seconds']:.0f}" for row in seed_rows))
        lines.append(f"| `{preset}` | {' | '.join(cells)} |")
    return lines


def interval(evaluation: object) -> str:
    """Format an evaluation, for example `-155.8 ± 41.9`."""
    assert isinstance(evaluation, dict)
    return f"{evaluation['mean']:,.4g} ± {evaluation['interval_95']:.3g}"


def main() -> None:
    """Train the requested presets, then write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "presets", nargs="*", default=[name for name in presets.names() if presets.family(name) is None]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/presets"))
    arguments = parser.parse_args()
    path = HERE / "presets.json"
    previous = (
        [row for row in json.loads(path.read_text()) if row["preset"] not in arguments.presets] if path.exists() else []
    )
    work = [
        (preset, seed, arguments.out, forgets)
        for preset in arguments.presets
        for forgets in ((False, True) if has_memory(preset) else (False,))
        for seed in arguments.seeds
    ]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = previous + list(pool.map(lambda item: train(*item), work))
    rows.sort(key=lambda row: (row["preset"], row.get("forgets", False), row["seed"]))
    path.write_text(json.dumps(rows, indent=1) + "\n")
    (HERE / "presets.md").write_text(table(rows, "python benchmarks/presets.py"))


if __name__ == "__main__":
    main()
