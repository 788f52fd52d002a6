"""Kills at random moments, and the memory of a run that is killed again and again: parts of the benchmark of faults."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fault_runs import Case, environ, read_rows, wait_until
from tests.live_runs import ranks_of
from tests.warm import serving

from lockstep.run.manifest import verify

__all__ = [
    "EVERY",
    "LONG",
    "Figures",
    "check",
    "kill_and_resume",
    "kill_supervised",
    "kills_table",
    "reference",
    "soak",
]

EVERY = ("--run.checkpoint-every", "1", "--rollout.steps", "16", "--ppo.epochs", "1", "--run.loggers", "")
SHORT, LONG = 400, 1500
"""Iterations of a run that is resumed after every kill, and of one whose ranks are killed until it ends."""
FIRST_MINUTE = 60.0
COUNTED = (
    *("whole checkpoints seen", "broken checkpoints", "kills with lost or doubled metrics"),
    *("runs that left a process", "different final digests"),
)
Figures = dict[str, float]


def reference(folder: Path, iterations: int) -> str:
    """Return the digest of a run of one rank without faults."""
    case = Case(folder, f"whole-{iterations}", *EVERY, "--ranks", "1", iterations=iterations)
    assert case.start().wait() == 0, case.text()
    return case.digest()


def size(case: Case) -> int:
    """Return the size of the metrics in bytes."""
    path = case.run / "metrics.jsonl"
    return path.stat().st_size if path.exists() else 0


def wait_for_metrics(case: Case, process: "subprocess.Popen[str]") -> bool:
    """Wait until the run has written metrics since now. Return False if it ended before."""
    before = size(case)
    wait_until(lambda: process.poll() is not None or size(case) > before, 120)
    return process.poll() is None


def kill_and_resume(folder: Path, kills: int) -> Figures:
    """Kill a rank, the launcher or all processes of runs at random moments, check what is on disk, and resume them.

    The processes are forked from one that has imported PyTorch, which saves seconds per kill.
    """
    generator, expected = random.Random(1), reference(folder, SHORT)
    counts = dict.fromkeys(("kills", "runs", *COUNTED), 0)
    with serving(environ(), "lockstep.cli.train_rank", "lockstep.api") as server:
        while counts["kills"] < kills:
            counts["runs"] += 1
            name = f"resumed-{counts['runs']}"
            case = Case(folder, name, *EVERY, "--ranks", "2", "--restarts", "0", iterations=SHORT)
            command = case.command
            while counts["kills"] < kills:
                process = case.start(command, server.address)
                if not kill_one(case, process, generator):
                    break
                counts["kills"] += 1
                ended = wait_until(lambda: process.poll() is not None and not ranks_of(case.run), 20)  # noqa: B023
                counts["runs that left a process"] += not ended
                check(case.run, counts)
                if (case.run / "config.json").exists():
                    command = [*case.resume, "--ranks", "2", "--restarts", "0"]
                else:
                    shutil.rmtree(case.run, ignore_errors=True)
            counts["different final digests"] += bool(case.digest()) and case.digest() != expected
            shutil.rmtree(case.run, ignore_errors=True)
            print(counts, flush=True)
    return counts


def check(run: Path, counts: Figures) -> None:
    """Count the checkpoints that are whole and broken after a kill, and the metrics that are lost or doubled."""
    numbers = [row["iteration"] for row in read_rows(run)]
    lost = numbers != list(range(1, len(numbers) + 1))
    for checkpoint in sorted((run / "checkpoints").glob("[0-9]*")):
        counts["whole checkpoints seen" if is_whole(checkpoint) else "broken checkpoints"] += 1
        lost |= int(checkpoint.name) > len(numbers)
    counts["kills with lost or doubled metrics"] += lost


def kill_one(case: Case, process: "subprocess.Popen[str]", generator: random.Random) -> bool:
    """Kill a rank, the launcher, or all of them: one in four times while they start. Return False if the run had ended."""
    if generator.random() < 0.25:
        wait_until(lambda: process.poll() is not None, generator.uniform(0.05, 1.5))
    elif wait_for_metrics(case, process):
        time.sleep(generator.uniform(0, 1))
    ranks = ranks_of(case.run) if process.poll() is None else []
    victim = generator.choice(["launcher", "rank", "rank", "all"])
    if process.poll() is not None:
        return False
    victims = (
        [generator.choice(ranks)] if victim == "rank" and ranks else [process.pid, *(ranks if victim == "all" else ())]
    )
    for number in victims:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    return True


def is_whole(checkpoint: Path) -> bool:
    """Return True if all files of a checkpoint have their hashes."""
    try:
        verify(checkpoint)
    except ValueError:
        return False
    return True


def kill_supervised(folder: Path, kills: int) -> Figures:
    """Kill ranks of one run at random moments of its training. The command starts them again."""
    generator, expected = random.Random(2), reference(folder, LONG)
    case, done = Case(folder, "supervised", *EVERY, "--ranks", "2", "--restarts", "1000", iterations=LONG), 0
    with serving(environ(), "lockstep.cli.train_rank", "lockstep.api") as server:
        launcher = case.start(server=server.address)
        while done < kills and wait_for_metrics(case, launcher):
            time.sleep(generator.uniform(0, 1))
            ranks = ranks_of(case.run)
            if len(ranks) == 2 and launcher.poll() is None:  # not those that end because of the kill before
                os.kill(generator.choice(ranks), signal.SIGKILL)
                done += 1
        code = launcher.wait(600)
    numbers = [row["iteration"] for row in case.rows()]
    return {
        "kills": done,
        "exit code": code,
        "starts": len(case.starts()),
        "runs with lost or doubled metrics": int(numbers != list(range(1, LONG + 1))),
        "different final digests": int(case.digest() != expected),
    }


def soak(folder: Path, seconds: float, kills_ranks: bool = True) -> Figures:
    """Follow the memory and the descriptors of all processes of a run of four ranks for some minutes.

    With `kills_ranks`, ranks are killed, and a checkpoint is written at every iteration. Otherwise the run has the default settings.
    """
    generator = random.Random(3)
    words = EVERY if kills_ranks else ("--rollout.steps", "256", "--run.checkpoint-every", "50")
    name = "soak" if kills_ranks else "steady"
    case = Case(folder, name, *words, "--plan.shards", "4", "--ranks", "4", "--restarts", "1000", iterations=10**6)
    launcher, kills = case.start(), 0
    begun, seen = time.monotonic(), dict[int, list[tuple[float, int, int]]]()
    next_kill = generator.uniform(30, 120) if kills_ranks else float("inf")
    while time.monotonic() - begun < seconds and launcher.poll() is None:
        ranks = case.ranks(launcher.pid)
        for number in (launcher.pid, *ranks):
            seen.setdefault(number, []).extend(sample(number))
        if time.monotonic() - begun > next_kill and len(ranks) == 4 and size(case):
            os.kill(generator.choice(ranks), signal.SIGKILL)
            kills += 1
            next_kill += generator.uniform(30, 120)
        time.sleep(1)
    launcher.terminate()
    code = launcher.wait(60)
    growth, descriptors = zip(*map(changes, seen.values()), strict=True)
    return {
        "seconds": round(time.monotonic() - begun),
        "kills": kills,
        "exit code": code,
        "iterations": len(case.rows()),
        "processes that were followed for more than a minute": sum(map(bool, growth)),
        "largest growth of memory after the first minute": max(growth),
        "largest increase of descriptors after the first minute": max(descriptors),
    }


def sample(number: int) -> Iterator[tuple[float, int, int]]:
    """Yield the time, the resident memory in bytes and the number of descriptors of a process, if it is alive."""
    try:
        resident = int(Path(f"/proc/{number}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        yield time.monotonic(), resident, len(list(Path(f"/proc/{number}/fd").iterdir()))
    except (OSError, IndexError):
        return


def changes(samples: list[tuple[float, int, int]]) -> tuple[float, int]:
    """Return the growth of memory, as a fraction, and the increase of descriptors after the first minute of a process."""
    later = [(memory, files) for then, memory, files in samples if samples and then - samples[0][0] > FIRST_MINUTE]
    if not later:
        return 0.0, 0
    return max(memory for memory, _ in later) / later[0][0] - 1, max(files for _, files in later) - later[0][1]


def kills_table(kills: dict[str, Figures]) -> Iterator[str]:
    """Yield the lines of the page about kills."""
    titles = {
        "resumed": "A rank, the launcher or all processes of runs of two ranks are killed at any moment; the run is resumed after each kill.",
        "stored": "All processes of runs of two ranks with `run.store` are killed before or after any write to a local server of S3, half of the times with the loss of the run folder; the command is repeated.",
        "supervised": "Ranks of one supervised run of two ranks are killed while they train: one command, without a resume.",
        "soak": "A run of four ranks on two cores for some minutes, with kills.",
        "steady": "The same without kills, with the default settings.",
    }
    for name, title in titles.items():
        if name in kills:
            yield f"\n{title}\n"
            yield "| | |\n| --- | ---: |"
            for label, value in kills[name].items():
                text = f"{value:.1%}" if label.startswith("largest growth") else f"{value:,}"
                yield f"| {label} | {text} |"
