"""Metrics and processes of a run that other processes train."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.warm import arguments_file

_LISTEN = "0A"
"""State of a socket that listens, in /proc/net/tcp."""


def rows(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of all finished iterations, without an incomplete last line."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def reached(run: Path, iterations: int) -> Callable[[], bool]:
    """Return a condition for `wait_for`: the run has finished so many iterations."""
    return lambda: len(rows(run)) >= iterations


def slow_hook(folder: Path, seconds: float = 0.1) -> tuple[str, str]:
    """Return flags with which every iteration of a run in `folder` takes longer, so that tests can interrupt it. No result changes."""
    folder.joinpath("slow.py").write_text(f"import time\n\n\ndef on_iteration(iteration):\n    time.sleep({seconds})\n")
    return "--run.hooks", "slow"


def digests(run: Path) -> list[str]:
    """Return the digest of every iteration."""
    return [row["digest"] for row in rows(run)]


def words_of(process: Path) -> list[bytes]:
    """Return the command line of a process, of which `process` is the folder in /proc, or the arguments of a program that was forked."""
    words = process.joinpath("cmdline").read_bytes().split(b"\0")
    if b"tests.warm" not in words:
        return words
    server = words[words.index(b"tests.warm") + 1].decode()
    return arguments_file(server, int(process.name)).read_bytes().split(b"\0")


def processes_with(*words: str) -> list[int]:
    """Return the ids of the live processes whose command line has all of these words."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if {word.encode() for word in words} <= set(words_of(process)):
                found.append(int(process.name))
    return found


def processes_in(folder: Path) -> list[int]:
    """Return the ids of the live processes whose working folder is `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # zombies have no working folder
            if process.joinpath("cwd").readlink() == folder:
                found.append(int(process.name))
    return found


def ranks_of(run: Path) -> list[int]:
    """Return the ids of live processes whose command line names `run`, and of their environment workers."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            alive = process.joinpath("stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            words = words_of(process)
        except OSError:
            continue
        if alive and b"rank" in words and str(run).encode() in words:
            found.append(int(process.name))
    return found


def wait_for(condition: Callable[[], object], what: str, seconds: float = 100) -> None:
    """Wait until `condition` is true; fail the test after `seconds`. `what` describes the condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"after {seconds} s still not: {what}")
        time.sleep(0.02)


def listening(processes: list[int]) -> list[str]:
    """Return the hexadecimal addresses on which the processes' TCP sockets listen."""
    return [address for address, _ in _listening_sockets(processes)]


def open_ports(processes: list[int]) -> list[int]:
    """Return the ports at which the processes' TCP sockets listen."""
    return [int(port, 16) for _, port in _listening_sockets(processes)]


def _listening_sockets(processes: list[int]) -> list[tuple[str, str]]:
    sockets = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with suppress(FileNotFoundError):  # the descriptor of this iteration, in a process that looks at its own
                sockets.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [tuple(row[1].split(":")) for row in rows if row[3] == _LISTEN and row[9] in sockets]
