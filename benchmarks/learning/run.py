"""Train and evaluate the tasks of a table with lockstep, and store one JSON file for each task and seed.

    python benchmarks/learning/run.py TABLE [--seeds 0-4] [--only TASK …] [--variants NAME …] [--jobs N] [--ranks N]

The tables are in `tables/`. Each run is `lockstep train`, then `lockstep eval` with the most probable and with sampled
actions. Runs that have a result are skipped, and an interrupted run is resumed: call the same command again.
A table with variants runs each of them after the table itself, seed by seed.
`--scale 0.01 --results DIR` tries a table with a hundredth of its budget. `--unfinished` trains nothing: it stores the learning curves of runs that
are not finished, for tables whose runs take hours.
"""

import argparse
import json
import shlex
import shutil
import sys
import time
from functools import partial
from pathlib import Path

from commands import call, run_all
from records import (
    RESULTS,
    UNTIMED_HELP,
    Record,
    machine,
    read_records,
    result_path,
    summary,
    thin_curve,
    thresholds,
    unfinished_path,
    untimed,
    write_record,
)
from tasks import Table, Task, parse_seeds, read_table, selected, with_variants

from lockstep import presets
from lockstep.config.compose import load, merged_tree
from lockstep.config.decode import encode
from lockstep.config.flags import as_flags
from lockstep.config.versions import with_present_names
from lockstep.run.stop import listen

IGNORED = {"run.name", "run.folder", "run.seed", "run.progress", "run.loggers"}
"""Fields in which runs of one task differ."""


def settings(task: Task, scale: float) -> dict[str, dict[str, object]]:
    """Return the settings of a task, by section and field, without those of its preset. Bits are portable, so that digests hold on other processors."""
    tree: dict[str, dict[str, object]] = {
        "env": {"id": task.env},
        "run": {"total_steps": round(task.steps * scale)},
        "runtime": {"bits": "portable"},
    }
    for section, fields in task.flags.items():
        tree[section] = tree.get(section, {}) | fields
    return tree


def experiment(task: Task, scale: float) -> dict[str, object]:
    """Return all fields that define the experiment, by `section.field`, before lockstep resolves them."""
    preset = presets.read(task.preset) if task.preset else None
    tree = json.loads(json.dumps(encode(load(preset, None, settings(task, scale)))))
    fields = {f"{section}.{name}": value for section, content in tree.items() for name, value in content.items()}
    return {name: value for name, value in fields.items() if name not in IGNORED}


def changed(task: Task, scale: float, config: dict[str, object]) -> list[str]:
    """Return the fields that have other values than in an earlier `experiment`, such as defaults that have changed."""
    now = experiment(task, scale)
    return [name for name, value in with_present_names(config).items() if name in now and now[name] != value]


def beside(folder: Path, suffix: str) -> Path:
    """Return the file next to a run folder. `with_suffix` would cut names such as `discount-0.995-Hopper-v5-0`."""
    return folder.with_name(folder.name + suffix)


def train(task: Task, seed: int, scale: float, ranks: int | None, folder: Path) -> float | None:
    """Train a run in `folder`, or resume it. Return the seconds of the command, None if the run was resumed."""
    log, config = beside(folder, ".log"), beside(folder, ".json")
    lockstep = [sys.executable, "-m", "lockstep"]
    execution = ["--run.progress", "off", *(["--ranks", str(ranks)] if ranks else [])]
    begun = (folder / "config.json").is_file() and config.is_file()
    if begun and not changed(task, scale, json.loads(config.read_text())):
        call([*lockstep, "resume", str(folder), *execution], log)
        return None
    shutil.rmtree(folder, ignore_errors=True)  # killed while it was created, or begun with other settings
    write_record(config, experiment(task, scale))
    flags = as_flags(settings(task, scale))
    names = ["--seed", str(seed), "--name", folder.name, "--out", str(folder.parent)]
    start = time.perf_counter()
    call([*lockstep, "train", *([task.preset] if task.preset else []), *flags, *names, *execution], log)
    return round(time.perf_counter() - start, 1)


def evaluate(task: Task, folder: Path, sample: bool) -> Record:
    """Evaluate the policy of a run on episodes that were not used in training."""
    words = ["eval", str(folder), "--episodes", str(task.episodes), *(["--sample"] if sample else [])]
    call([sys.executable, "-m", "lockstep", *words], beside(folder, ".log"))
    stored = json.loads((folder / f"evaluation{'-sampled' if sample else ''}.json").read_text())
    return summary(stored["returns"])


def record_of(table: Table, task: Task, seed: int, scale: float, folder: Path) -> Record:
    """Return everything about a trained run except for its evaluations."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    config = json.loads((folder / "config.json").read_text())
    environment = json.loads((folder / "environment.json").read_text())
    steps, seconds = rows[-1]["env_steps"], rows[-1]["seconds"]
    preset = presets.read(task.preset) if task.preset else None
    flags = settings(task, scale)
    return {
        "program": "lockstep",
        "table": table.name,
        "task": task.name,
        "seed": seed,
        "environment": task.environment,
        "preset": task.preset,
        "command": shlex.join(
            ["lockstep", "train", *([task.preset] if task.preset else []), *as_flags(flags), "--seed", str(seed)]
        ),
        "settings": merged_tree(preset, None, flags),
        "config": json.loads(beside(folder, ".json").read_text()),
        "engine": config["env"]["engine"],
        "versions": environment["packages"],
        "commit": environment["git"],
        **machine(),
        "steps": steps,
        "seconds": round(seconds, 1),
        "steps_per_second": round(steps / seconds),
        "thresholds": thresholds(
            [(row["env_steps"], row["seconds"], row["return_mean_20"]) for row in rows], [task.wanted, task.bar]
        ),
        "curve": thin_curve([(row["env_steps"], row["episodes"], row["return_mean"] or 0.0) for row in rows]),
        "digest": rows[-1]["digest"],
    }


def run(
    table: Table, task: Task, seed: int, scale: float, ranks: int | None, timed: bool, runs: Path, results: Path
) -> str:
    """Train and evaluate one run, store its result, and return a line about it."""
    folder = runs / f"{table.name}-{task.name}-{seed}"
    wall = train(task, seed, scale, ranks, folder)
    record = record_of(table, task, seed, scale, folder) | {"wall_seconds": wall}
    record["evaluation"] = {
        "deterministic": evaluate(task, folder, sample=False),
        "sampled": evaluate(task, folder, sample=True),
    }
    write_record(result_path(results, table.name, task.name, seed), record if timed else untimed(record))
    unfinished_path(results, table.name, task.name, seed).unlink(missing_ok=True)
    means = {kind: evaluation["mean"] for kind, evaluation in record["evaluation"].items()}
    return f"{task.name} seed {seed}: {means}, {record['steps']:,} steps in {record['seconds']:g} s"


def store_unfinished(
    table: Table, task: Task, seed: int, scale: float, ranks: int | None, timed: bool, runs: Path, results: Path
) -> str:
    """Store what a run that is not finished has recorded, and return a line about it. `ranks` are not used."""
    folder = runs / f"{table.name}-{task.name}-{seed}"
    if not (folder / "metrics.jsonl").is_file():
        return f"{task.name} seed {seed}: not begun"
    record = record_of(table, task, seed, scale, folder)
    write_record(unfinished_path(results, table.name, task.name, seed), record if timed else untimed(record))
    return f"{task.name} seed {seed}: {record['steps']:,} of {task.steps:,} steps"


def check(table: Table, tasks: list[Task], scale: float, results: Path) -> None:
    """Print which results have other settings than a run would have now. Raises ValueError if a preset is missing."""
    for task in tasks:
        if task.preset and task.preset not in presets.names():
            raise ValueError(
                f"{task.name} needs the preset {task.preset!r}, which this version of lockstep does not have"
            )
        for record in read_records(results, table.name, task.name):
            if fields := changed(task, scale, record["config"]):
                path = result_path(results, table.name, task.name, record["seed"])
                print(f"{path} was made with other values of {', '.join(fields)}; delete it to run it again")


def main() -> int:
    """Train and evaluate what is missing, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--seeds", type=parse_seeds, help="such as 0-4 or 0,3 (default: those of each task)")
    parser.add_argument("--only", nargs="+", metavar="TASK")
    parser.add_argument(
        "--variants", nargs="*", metavar="NAME", help="only these (default: all, after the table itself)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; more than 1 disturbs the measured seconds")
    parser.add_argument(
        "--ranks", type=int, help="processes of each run, which change no result (default: as `lockstep train`)"
    )
    parser.add_argument("--untimed", action="store_true", help=UNTIMED_HELP)
    parser.add_argument(
        "--unfinished", action="store_true", help="store the learning curves of runs that are not finished"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/learning"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the budget; needs --results")
    arguments = parser.parse_args()
    if arguments.scale != 1 and arguments.results == RESULTS:
        parser.error("--scale needs --results: the repository keeps results of the whole budget only")
    try:
        tables = with_variants(read_table(arguments.table), arguments.variants)
        chosen = [(table, task) for table in tables for task in selected(table, arguments.only)]
        for table in tables:
            check(table, selected(table, arguments.only), arguments.scale, arguments.results)
    except ValueError as error:
        parser.error(str(error))
    listen()
    seeds = arguments.seeds or range(max(task.seeds for _, task in chosen))
    work = [
        partial(
            store_unfinished if arguments.unfinished else run,
            table,
            task,
            seed,
            arguments.scale,
            arguments.ranks,
            not arguments.untimed,
            arguments.out,
            arguments.results,
        )
        for seed in seeds  # all tasks and variants have a first seed before any has a second one
        for table, task in chosen
        if (arguments.seeds or seed < task.seeds)
        and not result_path(arguments.results, table.name, task.name, seed).exists()
    ]
    print(f"{arguments.table}: {len(work)} runs to do", flush=True)
    return run_all(arguments.jobs, work)


if __name__ == "__main__":
    sys.exit(main())
