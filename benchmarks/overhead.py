"""Measure the overhead of a run: logging, start and memory. Write benchmarks/overhead.json and .md.

    python benchmarks/overhead.py [--repeats 5] [--steps 500_000] [--out benchmarks/overhead.json]

Every run is a command with default settings in its own terminal: with the live view, TensorBoard, metrics.jsonl, digests and checkpoints. All of these are in
the phase `record`; its fraction of the time of all iterations is reported. The start is measured from the shell prompt to the first line of metrics.jsonl, with
kernels in the cache. Memory is the peak over all ranks. The runs of all workloads are interleaved. One workload also runs with `--restarts 0`: without the
process that watches the heartbeats of the rank.
"""

import argparse
import dataclasses
import json
import os
import platform
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

from lockstep.bench.repeats import Spread, interleave, ratios, spread
from lockstep.bench.training import peaks
from lockstep.bench.workloads import PLAIN
from lockstep.run.environment import describe_environment

WIDE = " ".join(("--rollout.steps 256 --ppo.epochs 4 --ppo.minibatches 4", *PLAIN))
SUPERVISED = "CartPole-v1, 8 × 256"
ALONE = f"{SUPERVISED}, `--restarts 0`"
WORKLOADS = {
    "CartPole-v1, iterations of 256 steps": (f"--config {Path(__file__).with_name('cartpole_256.yaml')}", 1),
    "CartPole-v1, defaults": ("--env CartPole-v1 --total-steps {steps}", 1),
    SUPERVISED: (f"--env CartPole-v1 {WIDE} --env.count 8 --total-steps {{steps}}", 1),
    ALONE: (f"--env CartPole-v1 {WIDE} --env.count 8 --total-steps {{steps}} --restarts 0", 1),
    "CartPole-v1, 16 × 256, 2 ranks": (
        f"--env CartPole-v1 {WIDE} --env.count 16 --plan.shards 2 --total-steps {{steps}}",
        2,
    ),
    "Reacher-v5, defaults": ("--env Reacher-v5 --total-steps 300_000", 1),
}


@dataclasses.dataclass(frozen=True)
class Cost:
    """Fraction of the phase `record`, seconds to the first update, peak memory of a rank in MiB, and median seconds per iteration, of one run."""

    record_share: float
    first_update: float
    peak_memory: float
    iteration: float


def cost(flags: str, ranks: int) -> Cost:
    """Train one run in a terminal and return its cost."""
    with tempfile.TemporaryDirectory(prefix="lockstep-overhead-") as folder:
        words = [*flags.split(), "--ranks", str(ranks), "--out", folder, "--name", "run"]
        terminal, child_end = pty.openpty()
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "lockstep", "train", *words],
            stdin=subprocess.DEVNULL,
            stdout=child_end,
            stderr=child_end,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"},
        )
        os.close(child_end)
        threading.Thread(target=drain, args=(terminal,), daemon=True).start()
        metrics = Path(folder, "run", "metrics.jsonl")
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.005)
        first, peak = time.perf_counter() - start, 0
        while process.poll() is None:
            peak = max(peak, *peaks(process.pid, ranks))
            time.sleep(0.1)
        assert process.returncode == 0, f"lockstep train {' '.join(words)} ended with {process.returncode}"
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        os.close(terminal)
    seconds = [row["t_iter"] for row in rows]
    return Cost(sum(row["t_record"] for row in rows) / sum(seconds), first, peak / 2**20, statistics.median(seconds))


def drain(terminal: int) -> None:
    """Read and discard the output of a terminal until all writers have closed it."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        pass


def page(results: dict[str, dict[str, Spread]], supervision: Spread, machine: str) -> str:
    """Return the Markdown page. `supervision` is the ratio of the times of an iteration with and without the watching process."""
    lines = [
        "# Overhead of a run",
        "",
        "    python benchmarks/overhead.py",
        "",
        "Time of logging, time of the start, and memory of a run in a terminal with default settings. The phase `record` includes the live view, TensorBoard,",
        f"metrics.jsonl, digests and checkpoints. Medians of interleaved runs, with minimum and maximum. {machine}.",
        "The memory of a single rank includes that of the process that watches it.",
        "",
        "| | fraction of `record` | prompt to first update | peak memory of a rank |",
        "| --- | --- | --- | --- |",
    ]
    for workload, costs in results.items():
        cells = [
            template.format(values.median, values.least, values.most)
            for template, values in zip(
                ("{:.1%} ({:.1%} … {:.1%})", "{:.2f} s ({:.2f} … {:.2f})", "{:.0f} MiB ({:.0f} … {:.0f})"),
                costs.values(),
                strict=False,
            )
        ]
        lines.append(f"| {workload} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"An iteration of {SUPERVISED} takes {supervision.median:.3f} ({supervision.least:.3f} … {supervision.most:.3f}) times as long with the process that watches",
        "the rank, which restarts it after faults, as with `--restarts 0`: medians of the ratios within each repeat.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all workloads and write the JSON file and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("overhead.json"))
    arguments = parser.parse_args()
    runs = {
        name: partial(cost, flags.format(steps=arguments.steps), ranks) for name, (flags, ranks) in WORKLOADS.items()
    }
    for run in runs.values():
        run()  # fills the cache of compiled kernels
    show = partial(print, file=sys.stderr, flush=True)
    results = interleave(runs, arguments.repeats, show)
    names = [field.name for field in dataclasses.fields(Cost)]
    costs = {
        workload: {name: spread([getattr(run, name) for run in finished]) for name in names}
        for workload, finished in results.items()
    }
    environment = describe_environment(2)
    machine = f"{os.cpu_count()} cores of {environment['processor']}, PyTorch {environment['packages']['torch']}"
    record = {
        "python": platform.python_version(),
        "machine": machine,
        "runs": {workload: [dataclasses.asdict(run) for run in finished] for workload, finished in results.items()},
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    supervision = ratios(*([run.iteration for run in results[name]] for name in (SUPERVISED, ALONE)))
    arguments.out.with_suffix(".md").write_text(page(costs, supervision, machine))


if __name__ == "__main__":
    main()
