"""Train runs of a table again, and compare them with their stored results. The exit code is 1 if one of them differs.

    python benchmarks/learning/verify.py TABLE [--seeds 0] [--only TASK …] [--jobs N] [--ranks N]

The weights after the last iteration, by their digest, and the return of every evaluated episode must be equal. Call the same command again to
continue after an interruption; `--repeated` is the folder of the runs and their results, and is kept.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from records import RESULTS, Record, read_records
from tasks import parse_seeds, read_table, selected, with_variants

PROGRAM = Path(__file__).with_name("run.py")


def differences(stored: Record, repeated: Record) -> list[str]:
    """Return what differs between two results of one run."""
    kinds = [
        f"{kind} evaluation"
        for kind in stored["evaluation"]
        if stored["evaluation"][kind] != repeated["evaluation"][kind]
    ]
    return [name for name in ("steps", "digest") if stored[name] != repeated[name]] + kinds


def compare(stored: Path, repeated: Path, table: str, task: str) -> int:
    """Print a line for each repeated run that has a stored result, and return the number of those that differ."""
    by_seed, different = {record["seed"]: record for record in read_records(stored, table, task)}, 0
    for record in read_records(repeated, table, task):
        if (before := by_seed.get(record["seed"])) is None:
            continue
        found = differences(before, record)
        different += bool(found)
        text = f"differs in {', '.join(found)} (stored by commit {before['commit'][:12]})" if found else "equal"
        print(f"{task} seed {record['seed']}: {text}", flush=True)
    return different


def main() -> int:
    """Repeat the runs, compare them, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--seeds", default="0", help="such as 0-4 or 0,3 (default 0)")
    parser.add_argument("--only", nargs="+", metavar="TASK")
    parser.add_argument(
        "--variants", nargs="+", metavar="NAME", help="only these (default: all, after the table itself)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument(
        "--ranks", type=int, help="processes of each run, which change no result (default: as `lockstep train`)"
    )
    parser.add_argument(
        "--repeated", type=Path, default=Path("runs/learning-repeated"), help="folder of the repeated runs"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    try:
        parse_seeds(arguments.seeds)
        tables = with_variants(read_table(arguments.table), arguments.variants)
        names = [(table.name, task.name) for table in tables for task in selected(table, arguments.only)]
    except ValueError as error:
        parser.error(str(error))
    words = [arguments.table, "--seeds", arguments.seeds, "--untimed", "--jobs", str(arguments.jobs)]
    words += [
        word for name in ("only", "variants") if (given := getattr(arguments, name)) for word in (f"--{name}", *given)
    ]
    words += ["--ranks", str(arguments.ranks)] if arguments.ranks else []
    words += ["--out", str(arguments.repeated), "--results", str(arguments.repeated / "results")]
    code = subprocess.run([sys.executable, str(PROGRAM), *words], check=False).returncode
    different = sum(compare(arguments.results, arguments.repeated / "results", *name) for name in names)
    return code or int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
