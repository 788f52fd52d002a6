"""Time of one reduction between two ranks of one host: this package's groups against torch.distributed's all_reduce.

    python benchmarks/reduction.py [--out benchmarks/reduction.json] [--repeats 9] [--seconds 0.1]

Two processes hold a SharedMemoryGroup, a NetworkGroup (gloo, loopback interface) and torch.distributed's own process group at
once. `all_reduce` is gloo's as PyTorch leaves it. NetworkGroup has gloo's thread scheduled in another way
(`lockstep.group.point_to_point.schedule_gloo_as_batch`); what that does is shown by `network group, plain`, without it, and `all_reduce, batch`, with
it. Each repeat measures all for every size, in an order that moves on, so what disturbs the machine disturbs all of
them alike; a ratio is taken within a repeat. A measurement is as many reductions, one right after the other, as take about
`--seconds`. Both ranks contribute one row of float32 and get the sum; what comes out is compared before anything is timed.
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
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

from lockstep.group.memory import create_memory
from lockstep.group.network import NetworkGroup
from lockstep.group.point_to_point import schedule_gloo_as_batch
from lockstep.group.shared import SharedMemoryGroup

SIZES = (100, 10_000, 1_000_000)
WAYS = ("shared memory", "network group", "all_reduce", "network group, plain", "all_reduce, batch")
PLAIN = ("all_reduce", "network group, plain")
"""Where gloo's thread is scheduled as PyTorch leaves it."""
RANKS = 2


def ways(memory: int, meeting: str, rank: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """The functions that are compared: `[1, N]` -> `[N]`."""
    shared = SharedMemoryGroup(memory, rank, RANKS, 60)
    network = NetworkGroup("gloo", rank, RANKS, 60, meeting)

    def all_reduce(parts: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(parts)  # in place: nothing is copied before or after
        return parts[0]

    found: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "shared memory": lambda parts: shared.reduce(parts, "sum")
    }
    for way in WAYS[1:]:
        found[way] = all_reduce if way.startswith("all_reduce") else lambda parts: network.reduce(parts, "sum")
    return found


def seconds_of(way: str, reduce: Callable[[torch.Tensor], torch.Tensor], parts: torch.Tensor, times: int) -> float:
    """Seconds of one of `times` reductions."""
    schedule_gloo_as_batch(os.SCHED_OTHER if way in PLAIN else os.SCHED_BATCH)
    for _ in range(3):
        reduce(parts)
    begun = perf_counter()
    for _ in range(times):
        reduce(parts)
    return (perf_counter() - begun) / times


def work(arguments: argparse.Namespace) -> None:
    """One rank. Rank 0 prints seconds by size, way and repeat."""
    torch.set_num_threads(1)
    rank = arguments.rank
    reductions = ways(arguments.memory, arguments.meeting, rank)
    seen: dict[int, dict[str, list[float]]] = {size: {way: [] for way in WAYS} for size in SIZES}
    times: dict[tuple[int, str], int] = {}
    for size in SIZES:
        for way, reduce in reductions.items():
            assert torch.equal(reduce(torch.full((1, size), rank + 1.0)), torch.full((size,), 3.0)), way
            # both ranks do as many: rank 0 decides
            taken = torch.tensor([seconds_of(way, reduce, torch.zeros(1, size), 30)], dtype=torch.float64)
            dist.broadcast(taken, 0)
            times[size, way] = max(5, int(arguments.seconds / taken.item()))
    for repeat in range(arguments.repeats):
        for size in SIZES:
            for k in range(len(WAYS)):
                way = WAYS[(repeat + k) % len(WAYS)]
                dist.barrier()
                seen[size][way].append(seconds_of(way, reductions[way], torch.zeros(1, size), times[size, way]))
    dist.barrier()
    if rank == 0:
        print(json.dumps([{"size": size, "seconds": found} for size, found in seen.items()]))
    dist.destroy_process_group()


def measure(arguments: argparse.Namespace) -> list[dict[str, dict[str, list[float]]]]:
    """Starts the ranks; what rank 0 printed."""
    memory = create_memory(RANKS)
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "--memory": memory,
            "--meeting": f"file://{folder}/meeting",
            "--repeats": arguments.repeats,
            "--seconds": arguments.seconds,
        }
        command = [sys.executable, __file__, *(str(word) for option in options.items() for word in option)]
        ranks = [
            subprocess.Popen([*command, "--rank", str(rank)], pass_fds=[memory], stdout=subprocess.PIPE, text=True)
            for rank in range(RANKS)
        ]
        printed = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed")
    found: list[dict[str, dict[str, list[float]]]] = json.loads(printed[0])
    return found


def summary(times: list[float], digits: int) -> dict[str, float]:
    """Median and range."""
    return {
        "median": round(statistics.median(times), digits),
        "least": round(min(times), digits),
        "most": round(max(times), digits),
    }


def main() -> None:
    """Measures and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("reduction.json"))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        work(arguments)
        return
    load = os.getloadavg()[0]
    records = []
    for found in measure(arguments):
        size, seconds = found["size"], found["seconds"]
        for way in WAYS:
            ratios = [other / own for other, own in zip(seconds["all_reduce"], seconds[way], strict=True)]
            microseconds = summary([1e6 * value for value in seconds[way]], 1)
            records.append(
                {"floats": size, "way": way, "microseconds": microseconds, "times faster": summary(ratios, 2)}
            )
            print(f"{size:>9} {way:21} {microseconds}  {records[-1]['times faster']}", file=sys.stderr)
    result = {
        "command": "python benchmarks/reduction.py " + " ".join(sys.argv[1:]),
        "python": platform.python_version(),
        "torch": version("torch"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "load before": round(load, 2),
        "repeats": arguments.repeats,
    }
    head = json.dumps(result, indent=1)
    lines = ",\n".join("  " + json.dumps(record) for record in records)
    arguments.out.write_text(f'{head[:-2]},\n "records": [\n{lines}\n ]\n}}\n')


def processor() -> str:
    """The model of the CPU, where Linux says it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
