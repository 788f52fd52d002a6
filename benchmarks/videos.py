"""Measure the cost of videos during training: one run on one core, with the video sidecar running and stopped in turn.

    python benchmarks/videos.py [--pairs 16] [--seconds 5] [--out benchmarks/videos.json]

This is the worst case: CartPole-v1 with a video every iteration, so that an agent is always waiting to be recorded, and all processes of the run on the same
core. Every few seconds the sidecar and its child processes are stopped (SIGSTOP) or continued (SIGCONT). The speed is environment steps per second of CPU
time, where the CPU time is that of training and, if it is running, that of the sidecar; so other load on the machine does not change the result. The ratio is
computed between neighboring turns, whose order changes from pair to pair. The median and the mean with its 95 % interval (t distribution) are reported.
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
from typing import NamedTuple

from engines import processor

from lockstep.processes.parent import die_with_parent

T95 = {4: 3.18, 8: 2.36, 12: 2.20, 16: 2.13, 20: 2.09, 30: 2.05}
"""97.5 % quantiles of the t distribution, by the number of pairs."""
WORDS = (
    "--plan.shards 1 --ranks 1 --rollout.steps 256 --total-steps 1_000_000_000 --run.capture-video 1 --run.progress off"
)


class Counts(NamedTuple):
    """Environment steps, and CPU seconds of training and of videos."""

    steps: int
    training: float
    videos: float


def group_of(run: Path) -> int:
    """Return the process group of the video sidecar of a run, which contains its child processes too; 0 if there is none yet."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = process.joinpath("cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"video" in words and str(run).encode() in words:
            return os.getpgid(int(process.name))
    return 0


def steps_so_far(run: Path) -> int:
    """Return the environment steps in the last complete line of metrics.jsonl."""
    with (run / "metrics.jsonl").open("rb") as file:
        file.seek(-min(8192, file.seek(0, os.SEEK_END)), os.SEEK_END)
        return int(json.loads(file.read().rsplit(b"\n", 2)[-2])["env_steps"])


def seconds_of(matches: int, field: int) -> float:
    """Return the CPU seconds of the processes whose id (field 0) or group (field 4) is `matches`. For a group, ended children are included."""
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


def counts(run: Path, rank: int, group: int) -> Counts:
    """Wait until metrics are written, which happens a few times a second, and return the steps and CPU seconds so far."""
    size = (run / "metrics.jsonl").stat().st_size
    while (run / "metrics.jsonl").stat().st_size == size:
        time.sleep(0.001)
    return Counts(steps_so_far(run), seconds_of(rank, 0), seconds_of(group, 4))


def turn(run: Path, rank: int, group: int, seconds: float) -> Counts:
    """Return the steps and CPU seconds of about `seconds` of wall time."""
    before = counts(run, rank, group)
    time.sleep(seconds)
    after = counts(run, rank, group)
    return Counts(after.steps - before.steps, after.training - before.training, after.videos - before.videos)


def measured(run: Path, rank: int, pairs: int, seconds: float) -> tuple[list[float], list[float]]:
    """Return per pair of turns the ratio of the speed with videos to the speed without, and the fraction of the CPU time that videos took."""
    while not (group := group_of(run)) or (run / "metrics.jsonl").read_bytes().count(b"\n") < 20:
        time.sleep(0.1)
    ratios, shares = [], []
    for pair in range(pairs):
        turns = {}
        for videos in (True, False) if pair % 2 else (False, True):
            os.killpg(group, signal.SIGCONT if videos else signal.SIGSTOP)
            time.sleep(0.3)
            turns[videos] = turn(run, rank, group, seconds)
        speed = {videos: counted.steps / (counted.training + counted.videos) for videos, counted in turns.items()}
        ratios.append(speed[True] / speed[False])
        shares.append(turns[True].videos / (turns[True].training + turns[True].videos))
    os.killpg(group, signal.SIGCONT)
    return ratios, shares


def main() -> None:
    """Start a training run, measure it, and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=16, choices=sorted(T95))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("videos.json"))
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="lockstep-videos-", ignore_cleanup_errors=True) as folder:
        command = [
            sys.executable,
            "-m",
            "lockstep",
            "train",
            "--config",
            str(Path(__file__).with_name("cartpole_256.yaml")),
            "--name",
            "videos",
            "--out",
            folder,
            *WORDS.split(),
        ]
        training = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, preexec_fn=partial(die_with_parent, os.getpid())
        )
        os.sched_setaffinity(training.pid, cores[-1:])
        os.sched_setaffinity(0, cores[:1])  # this process measures from another core
        try:
            ratios, shares = measured(Path(folder) / "videos", training.pid, arguments.pairs, arguments.seconds)
        finally:
            training.send_signal(signal.SIGINT)
            training.wait()
    mean = statistics.fmean(ratios)
    half = T95[arguments.pairs] * statistics.stdev(ratios) / arguments.pairs**0.5
    record = {
        "command": f"python benchmarks/videos.py --pairs {arguments.pairs} --seconds {arguments.seconds:g}",
        "processor": processor(),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "median": round(statistics.median(ratios), 4),
        "mean": round(mean, 4),
        "mean_95": [round(mean - half, 4), round(mean + half, 4)],
        "videos_share_of_the_core": {"mean": round(statistics.fmean(shares), 5), "most": round(max(shares), 5)},
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
