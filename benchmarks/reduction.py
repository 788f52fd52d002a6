"""Measure the time of one reduction between two ranks of one host: lockstep's groups against torch.distributed's all_reduce.

    python benchmarks/reduction.py [--out benchmarks/reduction.json] [--repeats 9] [--seconds 0.1]

Two processes have a SharedMemoryGroup, a NetworkGroup (gloo, loopback interface) and torch.distributed's process group at the same time. `all_reduce` is
that of gloo with PyTorch's default scheduling. NetworkGroup changes the scheduling policy of gloo's thread (`lockstep.group.point_to_point.schedule_gloo_as_batch`). Two more
cases show the effect: `network group, plain` is NetworkGroup without this change, `all_reduce, batch` is all_reduce with it.

Each repeat measures all cases for every size, in a rotating order, so that other load on the machine affects all of them equally; ratios are computed within a
repeat. A measurement is a number of consecutive reductions that takes about `--seconds`. Both ranks contribute one row of float32 and get the sum; the
result is checked before the timing.
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
"""Cases with PyTorch's default scheduling of gloo's thread."""
RANKS = 2


def create_reductions(memory: int, rendezvous: str, rank: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Return the functions to compare, by name: `[1, N]` -> `[N]`."""
    shared = SharedMemoryGroup(memory, rank, RANKS, 60)
    network = NetworkGroup("gloo", rank, RANKS, 60, rendezvous)

    def all_reduce(parts: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(parts)  # in place: nothing is copied before or after
        return parts[0]

    reductions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "shared memory": lambda parts: shared.reduce(parts, "sum")
    }
    for way in WAYS[1:]:
        reductions[way] = all_reduce if way.startswith("all_reduce") else lambda parts: network.reduce(parts, "sum")
    return reductions


def seconds_of(way: str, reduce: Callable[[torch.Tensor], torch.Tensor], parts: torch.Tensor, times: int) -> float:
    """Run `times` reductions and return the seconds of one."""
    schedule_gloo_as_batch(os.SCHED_OTHER if way in PLAIN else os.SCHED_BATCH)
    for _ in range(3):
        reduce(parts)
    start = perf_counter()
    for _ in range(times):
        reduce(parts)
    return (perf_counter() - start) / times


def run_rank(arguments: argparse.Namespace) -> None:
    """Run the measurements of one rank. Rank 0 prints seconds by size, case and repeat as JSON."""
    torch.set_num_threads(1)
    rank = arguments.rank
    reductions = create_reductions(arguments.memory, arguments.rendezvous, rank)
    seconds: dict[int, dict[str, list[float]]] = {size: {way: [] for way in WAYS} for size in SIZES}
    times: dict[tuple[int, str], int] = {}
    for size in SIZES:
        for way, reduce in reductions.items():
            assert torch.equal(reduce(torch.full((1, size), rank + 1.0)), torch.full((size,), 3.0)), way
            # both ranks must run the same number of reductions, so rank 0 decides
            duration = torch.tensor([seconds_of(way, reduce, torch.zeros(1, size), 30)], dtype=torch.float64)
            dist.broadcast(duration, 0)
            times[size, way] = max(5, int(arguments.seconds / duration.item()))
    for repeat in range(arguments.repeats):
        for size in SIZES:
            for k in range(len(WAYS)):
                way = WAYS[(repeat + k) % len(WAYS)]
                dist.barrier()
                seconds[size][way].append(seconds_of(way, reductions[way], torch.zeros(1, size), times[size, way]))
    dist.barrier()
    if rank == 0:
        print(json.dumps([{"size": size, "seconds": by_way} for size, by_way in seconds.items()]))
    dist.destroy_process_group()


def measure(arguments: argparse.Namespace) -> list[dict[str, dict[str, list[float]]]]:
    """Start the ranks and return the measurements that rank 0 prints. Raises SystemExit if a rank fails."""
    memory = create_memory(RANKS)
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "--memory": memory,
            "--rendezvous": f"file://{folder}/rendezvous",
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
    measurements: list[dict[str, dict[str, list[float]]]] = json.loads(printed[0])
    return measurements


def summary(times: list[float], digits: int) -> dict[str, float]:
    """Return median, minimum and maximum of `times`."""
    return {
        "median": round(statistics.median(times), digits),
        "least": round(min(times), digits),
        "most": round(max(times), digits),
    }


def main() -> None:
    """Measure all cases and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("reduction.json"))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments)
        return
    load = os.getloadavg()[0]
    records = []
    for measurement in measure(arguments):
        size, seconds = measurement["size"], measurement["seconds"]
        for way in WAYS:
            ratios = [all_reduce / other for all_reduce, other in zip(seconds["all_reduce"], seconds[way], strict=True)]
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
    """Return the CPU model from /proc/cpuinfo, or the machine type if the file does not name it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
