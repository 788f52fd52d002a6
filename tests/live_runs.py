"""Looking at runs and their processes from outside."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.warm import words_of


def rows(run: Path) -> list[dict[str, Any]]:
    """Metrics of every iteration so far. A last line that is being written, or was cut off by a kill, is left out."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def reached(run: Path, iterations: int) -> Callable[[], bool]:
    """Whether a run has done so many iterations, for `wait_for`."""
    return lambda: len(rows(run)) >= iterations


def digests(run: Path) -> list[str]:
    """Digest after every iteration."""
    return [row["digest"] for row in rows(run)]


def ranks_of(run: Path) -> list[int]:
    """Process ids of everything alive whose command line names `run`, and of its environment workers."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            alive = process.joinpath("stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            words = process.joinpath("cmdline").read_bytes().split(b"\0")
            if b"tests.warm" in words:  # it was forked
                words = (
                    words_of(words[words.index(b"tests.warm") + 1].decode(), int(process.name))
                    .read_bytes()
                    .split(b"\0")
                )
        except OSError:
            continue
        if alive and b"rank" in words and str(run).encode() in words:
            found.append(int(process.name))
    return found


def wait_for(condition: Callable[[], object], what: str, seconds: float = 100) -> None:
    """Returns when `condition` holds; fails the test when it does not come to hold."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"after {seconds} s still not: {what}")
        time.sleep(0.02)
