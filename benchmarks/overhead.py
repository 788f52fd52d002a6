"""What a run costs besides training: its records, its start and its memory. Writes benchmarks/overhead.json and .md.

    python benchmarks/overhead.py [--repeats 5] [--steps 500_000] [--out benchmarks/overhead.json]

Every run is the command as it is given, in a terminal of its own, so with the live view, TensorBoard, metrics.jsonl, digests and checkpoints of
the default settings. The share is that of the phase `record`, in which all of those happen, in the time of all iterations. The start is from the
shell prompt to the first line of metrics.jsonl, kernels being in the cache; memory the most that any rank had. Runs of all works are in turn.
"""

import argparse
import dataclasses
import json
import os
import platform
import pty
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

from lockstep.bench.repeats import Spread, interleave, spread
from lockstep.bench.training import peaks
from lockstep.run.environment import describe_environment

WIDE = "--rollout.steps 256 --ppo.epochs 4 --ppo.minibatches 4"
WORKS = {
    "`cartpole`, the preset": ("cartpole", 1),
    "CartPole-v1, defaults": ("--env CartPole-v1 --total-steps {steps}", 1),
    "CartPole-v1, 8 × 256": (f"--env CartPole-v1 {WIDE} --env.count 8 --total-steps {{steps}}", 1),
    "CartPole-v1, 16 × 256, 2 ranks": (
        f"--env CartPole-v1 {WIDE} --env.count 16 --plan.shards 2 --total-steps {{steps}}",
        2,
    ),
    "Reacher-v5, defaults": ("--env Reacher-v5 --total-steps 300_000", 1),
}


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one run showed."""

    record_share: float
    first_update: float
    peak_memory: float


def cost(work: str, ranks: int) -> Cost:
    """Of one run."""
    with tempfile.TemporaryDirectory(prefix="lockstep-overhead-") as place:
        words = [*work.split(), "--ranks", str(ranks), "--out", place, "--name", "run"]
        terminal, end = pty.openpty()
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "lockstep", "train", *words],
            stdin=subprocess.DEVNULL,
            stdout=end,
            stderr=end,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"},
        )
        os.close(end)
        threading.Thread(target=shown, args=(terminal,), daemon=True).start()
        metrics = Path(place, "run", "metrics.jsonl")
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.005)
        first, peak = time.perf_counter() - begun, 0
        while process.poll() is None:
            peak = max(peak, *peaks(process.pid, ranks))
            time.sleep(0.1)
        assert process.returncode == 0, f"lockstep train {' '.join(words)} ended with {process.returncode}"
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        os.close(terminal)
    return Cost(sum(row["t_record"] for row in rows) / sum(row["t_iter"] for row in rows), first, peak / 2**20)


def shown(terminal: int) -> None:
    """Reads what a terminal shows, until nobody writes there."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        pass


def page(found: dict[str, dict[str, Spread]], machine: str) -> str:
    """The Markdown page."""
    lines = [
        "# What a run costs besides training",
        "",
        "    python benchmarks/overhead.py",
        "",
        "Default settings, in a terminal: live view, TensorBoard, metrics.jsonl, digests and checkpoints, all within the phase `record`. Medians of",
        f"interleaved runs, with the least and the most. {machine}.",
        "",
        "| | share of `record` | prompt to first update | most memory of a rank |",
        "| --- | --- | --- | --- |",
    ]
    for work, costs in found.items():
        cells = [
            told.format(one.median, one.least, one.most)
            for told, one in zip(
                ("{:.1%} ({:.1%} … {:.1%})", "{:.2f} s ({:.2f} … {:.2f})", "{:.0f} MiB ({:.0f} … {:.0f})"),
                costs.values(),
                strict=True,
            )
        ]
        lines.append(f"| {work} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("overhead.json"))
    own = parser.parse_args()
    runs = {name: partial(cost, words.format(steps=own.steps), ranks) for name, (words, ranks) in WORKS.items()}
    for run in runs.values():
        run()  # fills the cache
    told = partial(print, file=sys.stderr, flush=True)
    found = interleave(runs, own.repeats, told)
    names = [field.name for field in dataclasses.fields(Cost)]
    costs = {
        work: {name: spread([getattr(run, name) for run in each]) for name in names} for work, each in found.items()
    }
    environment = describe_environment(2)
    machine = f"{os.cpu_count()} cores of {environment['processor']}, PyTorch {environment['packages']['torch']}"
    record = {
        "python": platform.python_version(),
        "machine": machine,
        "runs": {work: [dataclasses.asdict(run) for run in each] for work, each in found.items()},
    }
    own.out.write_text(json.dumps(record, indent=1) + "\n")
    own.out.with_suffix(".md").write_text(page(costs, machine))


if __name__ == "__main__":
    main()
