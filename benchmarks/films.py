"""What films during training cost: one run on one core, in turns with the film maker at work and halted.

    python benchmarks/films.py [--pairs 16] [--seconds 5] [--out benchmarks/films.json]

CartPole-v1 with a film every iteration, so that an agent is always waiting to be filmed, and all processes of the run on the same core: the worst
case. Every few seconds the film maker, with all that it has started, is halted (SIGSTOP) or let go on. Compared are environment steps per second of
processor time, that of training and, while they are at work, that of films together: so it does not matter what else the machine does. The ratio is
taken between neighbouring turns, whose order changes from pair to pair. Reported are the median and the mean with its 95 % interval (t distribution).
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from engines import processor

from lockstep.processes.parent import die_with_parent

T95 = {4: 3.18, 8: 2.36, 12: 2.20, 16: 2.13, 20: 2.09, 30: 2.05}
"""Of the t distribution, by the number of pairs."""
WORDS = (
    "--plan.shards 1 --ranks 1 --rollout.steps 256 --total-steps 1_000_000_000 --run.capture-video 1 --run.progress off"
)


def group_of(run: Path) -> int:
    """The process group of the film maker of a run; everything that it starts is in it."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = process.joinpath("cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"film" in words and str(run).encode() in words:
            return os.getpgid(int(process.name))
    return 0


def steps_so_far(run: Path) -> int:
    """Environment steps, as the last whole line of metrics.jsonl says."""
    with (run / "metrics.jsonl").open("rb") as file:
        file.seek(-min(8192, file.seek(0, os.SEEK_END)), os.SEEK_END)
        return int(json.loads(file.read().rsplit(b"\n", 2)[-2])["env_steps"])


def seconds_of(matches: int, field: int) -> float:
    """Processor seconds of the processes whose process id (field 0) or group (4) is that, with those of their children that have ended."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = stat.read_text().split(" ", 1)
        except OSError:
            continue
        fields = [number, "", *rest.rpartition(")")[2].split()]
        if int(fields[field]) == matches:
            ticks += sum(map(int, fields[13:17] if field else fields[13:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def counts(run: Path, rank: int, group: int) -> tuple[int, float, float]:
    """Steps and processor seconds so far, taken when metrics have just been written, which happens a few times a second."""
    size = (run / "metrics.jsonl").stat().st_size
    while (run / "metrics.jsonl").stat().st_size == size:
        time.sleep(0.001)
    return steps_so_far(run), seconds_of(rank, 0), seconds_of(group, 4)


def turn(run: Path, rank: int, group: int, seconds: float) -> tuple[int, float, float]:
    """Steps, and the processor seconds of training and of films, over some time."""
    before = counts(run, rank, group)
    time.sleep(seconds)
    after = counts(run, rank, group)
    return after[0] - before[0], after[1] - before[1], after[2] - before[2]


def measured(run: Path, rank: int, pairs: int, seconds: float) -> tuple[list[float], list[float]]:
    """Ratios of the speed with films to the speed without; and the share of the processor that films took, while they were at work."""
    while not (group := group_of(run)) or (run / "metrics.jsonl").read_bytes().count(b"\n") < 20:
        time.sleep(0.1)
    ratios, shares = [], []
    for pair in range(pairs):
        found = {}
        for films in (True, False) if pair % 2 else (False, True):
            os.killpg(group, signal.SIGCONT if films else signal.SIGSTOP)
            time.sleep(0.3)
            found[films] = turn(run, rank, group, seconds)
        speed = {films: steps / (own + other) for films, (steps, own, other) in found.items()}
        ratios.append(speed[True] / speed[False])
        shares.append(found[True][2] / (found[True][1] + found[True][2]))
    os.killpg(group, signal.SIGCONT)
    return ratios, shares


def main() -> None:
    """Measures and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=16, choices=sorted(T95))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("films.json"))
    own = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="lockstep-films-", ignore_cleanup_errors=True) as place:
        command = [
            sys.executable,
            "-m",
            "lockstep",
            "train",
            "cartpole",
            "--name",
            "films",
            "--out",
            place,
            *WORDS.split(),
        ]
        training = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, preexec_fn=partial(die_with_parent, os.getpid())
        )
        os.sched_setaffinity(training.pid, cores[-1:])
        os.sched_setaffinity(0, cores[:1])  # which watches from another
        try:
            ratios, shares = measured(Path(place) / "films", training.pid, own.pairs, own.seconds)
        finally:
            training.send_signal(signal.SIGINT)
            training.wait()
    mean = statistics.fmean(ratios)
    half = T95[own.pairs] * statistics.stdev(ratios) / own.pairs**0.5
    record = {
        "command": f"python benchmarks/films.py --pairs {own.pairs} --seconds {own.seconds:g}",
        "processor": processor(),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "median": round(statistics.median(ratios), 4),
        "mean": round(mean, 4),
        "mean_95": [round(mean - half, 4), round(mean + half, 4)],
        "films_share_of_the_core": {"mean": round(statistics.fmean(shares), 5), "most": round(max(shares), 5)},
    }
    own.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
