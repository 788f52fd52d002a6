"""Train and evaluate the tasks of a table with Stable-Baselines3, and store one JSON file for each task and seed.

    python benchmarks/learning/sb3.py TABLE --python PATH [--seeds 0-4] [--only TASK …] [--jobs N]

The settings are those of the installed rl_zoo3, the budget and the evaluation those of run.py. `--python` names the
interpreter of a virtual environment with stable-baselines3, sb3-contrib and rl_zoo3; docs/learning.md has the pinned
versions. The results are in results/TABLE-sb3. An interrupted run is begun again: Stable-Baselines3 has no exact resume.
"""

import argparse
import json
import shlex
import sys
import time
from functools import partial
from pathlib import Path

from commands import call, run_all
from records import RESULTS, UNTIMED_HELP, result_path, untimed, write_record
from tasks import Table, Task, parse_seeds, read_table, selected

from lockstep.run.stop import listen


def run(table: Table, task: Task, seed: int, python: str, scale: float, timed: bool, runs: Path, results: Path) -> str:
    """Train and evaluate one run, store its result, and return a line about it."""
    zoo = task.zoo
    env_id = zoo.env or task.env
    words = ["--algorithm", zoo.algorithm, "--env", env_id, "--settings", zoo.settings or zoo.env or task.name]
    words += ["--steps", str(round(task.steps * scale)), "--seed", str(seed), "--episodes", str(task.episodes)]
    words += ["--options", json.dumps(task.options)] if task.options else []
    words += ["--thresholds", *(f"{value:g}" for value in (task.wanted, task.bar))]
    log = runs / f"{table.name}-sb3-{task.name}-{seed}.log"
    log.unlink(missing_ok=True)
    start = time.perf_counter()
    call([python, str(Path(__file__).with_name("sb3_train.py")), *words], log)
    wall = round(time.perf_counter() - start, 1)
    # warnings at the end of the process may follow the result
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith('{"settings"')]
    result = json.loads(lines[-1])
    record = {
        "program": "stable-baselines3",
        "table": table.name,
        "task": task.name,
        "seed": seed,
        "environment": env_id,
        "command": shlex.join(["sb3_train.py", *words]),
        **result,
        "wall_seconds": wall,
    }
    path = result_path(results, f"{table.name}-sb3", task.name, seed)
    write_record(path, record if timed else untimed(record))
    means = {kind: evaluation["mean"] for kind, evaluation in record["evaluation"].items()}
    return f"{task.name} seed {seed}: {means}, {record['steps']:,} steps in {record['seconds']:g} s"


def main() -> int:
    """Train and evaluate what is missing, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--python", required=True, metavar="PATH")
    parser.add_argument("--seeds", type=parse_seeds, help="such as 0-4 or 0,3 (default: those of each task)")
    parser.add_argument("--only", nargs="+", metavar="TASK")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; more than 1 disturbs the measured seconds")
    parser.add_argument("--untimed", action="store_true", help=UNTIMED_HELP)
    parser.add_argument("--out", type=Path, default=Path("runs/learning"), help="folder of the logs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the budget; needs --results")
    arguments = parser.parse_args()
    if arguments.scale != 1 and arguments.results == RESULTS:
        parser.error("--scale needs --results: the repository keeps results of the whole budget only")
    try:
        table = read_table(arguments.table)
        tasks = selected(table, arguments.only)
    except ValueError as error:
        parser.error(str(error))
    if table.baseline != table.name:
        # the same task, budget and settings: its runs are those of the other table
        shared = read_table(table.baseline).tasks
        tasks = [task for task in tasks if task.name not in shared]
    listen()
    work = [
        partial(
            run,
            table,
            task,
            seed,
            arguments.python,
            arguments.scale,
            not arguments.untimed,
            arguments.out,
            arguments.results,
        )
        for task in tasks
        for seed in arguments.seeds or range(task.seeds)
        if not result_path(arguments.results, f"{table.name}-sb3", task.name, seed).exists()
    ]
    print(f"{table.name}: {len(work)} runs to do", flush=True)
    return run_all(arguments.jobs, work)


if __name__ == "__main__":
    sys.exit(main())
