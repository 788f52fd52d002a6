"""Runs to compare: short, on four shards, through the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node")


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


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Returns when `condition` holds; fails the test when it does not come to hold."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"after {seconds} s still not: {what}")
        time.sleep(0.02)


@pytest.fixture
def begin(tmp_path: Path, environ: dict[str, str]):
    """`begin(*args)` starts `lockstep …` without waiting for it; all that is left of it is killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "lockstep", *map(str, args)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environ, start_new_session=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def same(run_cli, tmp_path: Path):
    """`same(a, b, iterations)`: `lockstep diff` finds them identical for that many iterations."""

    def check(a: object, b: object, iterations: int) -> None:
        rc, out, err = run_cli("diff", a, b)
        assert (rc, out.strip()) == (0, f"identical for {iterations} iterations"), out + err

    return check
