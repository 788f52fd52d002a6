"""Measure the cost of a reduction between ranks that share no memory: time, bytes on the wire, sockets and memory of a rank.

    unshare --map-root-user --net sh -c 'ip link set lo up && python benchmarks/traffic.py'

Every rank has a NetworkGroup (gloo, loopback interface) and contributes one row of float32. `gather` is a group that gathers all rows,
and `slices` one that adds them in slices, whatever their size; the table marks what lockstep chooses. Bytes are those that the loopback
interface has received, divided by the number of ranks; `unshare` gives this program an interface of its own. They are compared with
the formulas of docs/scaling.md. If there are more ranks than cores, times are longer than on separate hosts.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import torch

from lockstep.group import reduction
from lockstep.group.network import NetworkGroup

RANKS = (2, 4, 8)
SIZES = (10_000, 100_000, 500_000, 2_000_000)
WAYS = ("gather", "slices")
LARGE = reduction.NETWORK_BYTES
"""Bytes of all rows from which on lockstep chooses slices."""


def predicted_bytes(way: str, ranks: int, size: int) -> float:
    """Return the bytes that a rank receives for one row of `size` numbers per rank."""
    return 4 * size * (ranks - 1) * (1 if way == "gather" else 2 / ranks)


def received_bytes() -> int:
    """Return the number of bytes that the loopback interface has received."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.partition(":")[2].split()[0])


def measure(group: NetworkGroup, way: str, size: int, repeats: int) -> tuple[float, float]:
    """Return the milliseconds of a reduction, and the bytes per rank."""
    reduction.NETWORK_BYTES = sys.maxsize if way == "gather" else 0
    parts = torch.full((1, size), group.rank + 1.0)
    total = group.reduce(parts, "sum")
    assert total[0] == total[-1] == group.size * (group.size + 1) / 2
    group.barrier("begin")
    before, start = received_bytes(), perf_counter()
    for _ in range(repeats):
        group.reduce(parts, "sum")
    seconds = perf_counter() - start
    group.barrier("end")
    return 1e3 * seconds / repeats, (received_bytes() - before) / repeats / group.size


def run_rank(rank: int, ranks: int, rendezvous: str, rounds: int) -> None:
    """Run all measurements of one rank. Rank 0 prints them as JSON."""
    torch.set_num_threads(1)
    group = NetworkGroup("gloo", rank, ranks, 60, rendezvous)
    status = Path("/proc/self/status").read_text()
    links = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    records = []
    for size in SIZES:
        is_large = ranks > 2 and 4 * ranks * size >= LARGE
        repeats = max(5, min(50, 4_000_000 // size // ranks))
        measured: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for k in range(rounds):
            for way in WAYS if k % 2 else WAYS[::-1]:
                measured[way].append(measure(group, way, size, repeats))
        for way in WAYS:
            milliseconds, traffic = zip(*measured[way], strict=True)
            records.append(
                {
                    "ranks": ranks,
                    "floats": size,
                    "way": way,
                    "chosen": (way == "slices") == is_large,
                    "milliseconds": [round(value, 2) for value in sorted(milliseconds)],
                    "bytes": round(statistics.median(traffic)),
                    "predicted": round(predicted_bytes(way, ranks, size)),
                }
            )
    resources = {
        "ranks": ranks,
        "sockets": sum(link.startswith("socket:") for link in links),
        "files": len(links),
        "resident MB": int(status.partition("VmRSS:")[2].split()[0]) >> 10,
    }
    if rank == 0:
        print(json.dumps([records, resources]))
    group.barrier("end")
    group.close()


def run_ranks(ranks: int, rounds: int) -> tuple[list[dict[str, object]], dict[str, int]]:
    """Start the ranks and return what rank 0 prints."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--ranks", str(ranks), "--rounds", str(rounds)]
        command += ["--rendezvous", f"file://{folder}/rendezvous"]
        processes = [
            subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]
        printed = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    records, resources = json.loads(printed[0])
    return records, resources


def main() -> None:
    """Measure all cases, print them and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("traffic.json"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments.rank, arguments.ranks, arguments.rendezvous, arguments.rounds)
        return
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    result: dict[str, object] = {
        "torch": version("torch"),
        "processor": next(line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load before": round(os.getloadavg()[0], 2),
    }
    measured = [run_ranks(ranks, arguments.rounds) for ranks in RANKS]
    rows = [json.dumps(record) for records, _ in measured for record in records]
    usage = [json.dumps(resources) for _, resources in measured]
    print("\n".join([*rows, *usage]))
    blocks = [
        f' "{name}": [\n  ' + ",\n  ".join(items) + "\n ]" for name, items in (("records", rows), ("resources", usage))
    ]
    arguments.out.write_text(f"{json.dumps(result, indent=1)[:-2]},\n" + ",\n".join(blocks) + "\n}\n")


if __name__ == "__main__":
    main()
