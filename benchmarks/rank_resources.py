"""Count the sockets, the open files and the memory of a rank, as functions of the number of ranks.

    python benchmarks/rank_resources.py        # about 10 minutes; writes benchmarks/rank_resources.json

Every case is `lockstep train` on so many ranks of this host, with one shard per rank, and stops when it has been counted: after its third
iteration, the open files of all ranks are listed, and their memory is read (proportional set size: pages that several processes use are divided
among them). `small` are two layers of 64 units, `large` two layers of 1,000.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fault_runs import read_rows, wait_until

from lockstep.run.environment import describe_environment

RANKS = (1, 2, 4, 8, 16, 32, 64)
HIDDEN = {"small": ("64", "64"), "large": ("1000", "1000")}
CASES = (("small", "shared"), ("small", "gloo"), ("large", "shared"), ("large", "gloo"))
COUNTED = 3
"""Iterations before a run is counted."""
TIMEOUT = 900


def command(network: str, transport: str, ranks: int, folder: Path) -> list[str]:
    """Return the command that trains."""
    words = ("train", "--env", "CartPole-v1", "--plan.shards", str(ranks), "--env.count", str(ranks))
    shape = (
        "--rollout.steps",
        "64",
        "--ppo.epochs",
        "1",
        "--ppo.minibatches",
        "4",
        "--policy.hidden",
        *HIDDEN[network],
    )
    runtime = (
        "--runtime.backend",
        transport,
        "--runtime.timeout",
        "600",
        "--run.progress",
        "off",
        "--env.engine",
        "gymnasium",
    )
    rest = ("--total-steps", str(10**8), "--restarts", "0", "--out", str(folder), "--name", "run")
    return [sys.executable, "-m", "lockstep", *words, *shape, *runtime, *rest, "--ranks", str(ranks)]


def ranks_of(launcher: int, ranks: int) -> list[int]:
    """Return the processes of the ranks."""
    if ranks == 1:
        return [launcher]
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [process for process in map(int, children) if b"rank" in _words(process)]


def _words(process: int) -> list[bytes]:
    return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")


def count(process: int) -> dict[str, int]:
    """Return the sockets, the open files and the memory in MiB of a process."""
    links = [str(path.readlink()) for path in Path(f"/proc/{process}/fd").iterdir()]
    memory = Path(f"/proc/{process}/smaps_rollup").read_text()
    size = sum(int(line.split()[1]) for line in memory.splitlines() if line.startswith("Pss:"))
    sockets = sum(link.startswith("socket:") for link in links)
    return {"sockets": sockets, "files": len(links) - sockets, "MiB": size >> 10}


def measure(network: str, transport: str, ranks: int) -> dict[str, Any]:
    """Train until the run is counted, and return the largest counts and the median memory of its ranks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with (Path(folder) / "log").open("w") as log:
            launcher = subprocess.Popen(command(network, transport, ranks, Path(folder)), stdout=log, stderr=log)
        try:
            done = wait_until(lambda: len(read_rows(path)) >= COUNTED or launcher.poll() is not None, TIMEOUT)
            if not done or launcher.poll() is not None:
                raise SystemExit((Path(folder) / "log").read_text())
            counts = [count(process) for process in ranks_of(launcher.pid, ranks)]
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait()
    assert len(counts) == ranks
    return {
        "network": network,
        "transport": transport,
        "ranks": ranks,
        **{name: max(each[name] for each in counts) for name in ("sockets", "files")},
        "fewest sockets": min(each["sockets"] for each in counts),
        "MiB": statistics.median(each["MiB"] for each in counts),
        "MiB, largest": max(each["MiB"] for each in counts),
    }


def main() -> None:
    """Measure all cases, print them and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    records = []
    for network, transport in CASES:
        for ranks in arguments.ranks:
            if (ranks == 1 and transport == "gloo") or (ranks > 32 and network == "large"):
                continue  # there are no messages; they would need more than 24 GiB
            start = time.monotonic()
            records.append(measure(network, transport, ranks))
            print(json.dumps(records[-1]), f"{time.monotonic() - start:.0f} s", flush=True)
    lines = ",\n  ".join(json.dumps(record) for record in records)
    about = json.dumps({name: describe_environment(1)[name] for name in ("python", "system", "processor", "packages")})
    arguments.out.write_text(f'{{\n "about": {about},\n "records": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
