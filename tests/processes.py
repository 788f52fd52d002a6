"""Looking at runs and their processes from outside."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest


def digests(run: Path) -> list[str]:
    """Digest after every iteration."""
    return [json.loads(line)["digest"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def ranks_of(run: Path) -> list[int]:
    """Process ids of everything alive whose command line names `run`, and of its environment workers."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            alive = process.joinpath("stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            words = process.joinpath("cmdline").read_bytes().split(b"\0")
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
