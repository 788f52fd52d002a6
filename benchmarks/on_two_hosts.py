"""Command line of benchmarks whose ranks run on two hosts, with several rates of the network and numbers of ranks."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from namespaces import Host, two_hosts

from lockstep.run.environment import processor_type

RATES = ("1gbit", "10gbit")


def run_ranks(program: Path, hosts: Sequence[Host], per_host: int, rounds: int) -> list[dict[str, object]]:
    """Start the ranks of a program on both hosts and return what rank 0 prints."""
    words = [sys.executable, str(program), "--per-host", str(per_host), "--rounds", str(rounds)]
    processes = []
    for rank in range(2 * per_host):
        host = hosts[rank // per_host]
        command = [*host.command, *words, "--rank", str(rank)]
        environ = {**os.environ, "GLOO_SOCKET_IFNAME": host.cable}
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ))
    printed = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    records: list[dict[str, object]] = json.loads(printed[0])
    return records


def main(
    program: Path,
    description: str | None,
    run_rank: Callable[[int, int, int], None],
    counts: Sequence[int],
    rounds: int,
) -> None:
    """Measure all cases, print them and write the JSON file beside the program, or run one rank if the command line names it.

    `run_rank` gets the rank, the number of ranks per host, one of `counts`, and the number of rounds; rank 0 prints a list of records as JSON.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=program.with_suffix(".json"))
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--per-host", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments.rank, arguments.per_host, arguments.rounds)
        return
    result: dict[str, object] = {
        "torch": version("torch"),
        "processor": processor_type(False),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load before": round(os.getloadavg()[0], 2),
    }
    rows: list[str] = []
    for rate in RATES:
        for per_host in counts:
            with two_hosts(rate) as hosts:
                records = run_ranks(program, hosts, per_host, arguments.rounds)
            rows += (lines := [json.dumps({"rate": rate} | record) for record in records])
            print("\n".join(lines), flush=True)
    text = ",\n  ".join(rows)
    arguments.out.write_text(f'{json.dumps(result, indent=1)[:-2]},\n "records": [\n  {text}\n ]\n}}\n')
