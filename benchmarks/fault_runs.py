"""Runs of the benchmark of faults: how they are started, and what is read of them while they train."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.forked import SERVERS, ForkedPopen

__all__ = ["HERE", "ITERATIONS", "TIMEOUT", "Case", "environ", "read_rows", "wait_until"]

HERE = Path(__file__).parent
TIMEOUT = 5
ITERATIONS = 40
DEFAULTS = {"--rollout.steps": "64", "--plan.shards": "2", "--run.checkpoint-every": "5"}
WORDS = (
    *("--env", "Faulty-v0", "--env.module", "faulty_env", "--env.count", "8", "--env.timeout", str(TIMEOUT)),
    *("--runtime.timeout", str(TIMEOUT), "--run.progress", "off"),
)


def environ() -> dict[str, str]:
    """Return the environment variables for runs."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "src")])}


class Case:
    """A run in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *words: str,
        options: Mapping[str, object] | None = None,
        iterations: int = ITERATIONS,
        prefix: Sequence[str] = (),
    ) -> None:
        """`options` are those of the environment, and `prefix` are words before the command."""
        self.folder, self.run, self.mark = folder, folder / "runs" / name, folder / f"{name}.mark"
        self.temporary = folder / f"{name}.tmp"
        self.temporary.mkdir()
        given = {"mark": str(self.mark), **(options or {})}
        self.iterations = iterations
        words += tuple(word for name, value in DEFAULTS.items() if name not in words for word in (name, value))
        steps = ("--total-steps", str(8 * int(words[words.index("--rollout.steps") + 1]) * iterations))
        self.command = [
            *(*prefix, sys.executable, "-m", "lockstep", "train", *WORDS, *steps),
            *("--env.options", json.dumps(given), "--out", str(self.run.parent), "--name", name, *words),
        ]
        self.resume = [sys.executable, "-m", "lockstep", "resume", str(self.run), "--env.module", "faulty_env"]

    def start(self, command: list[str] | None = None, server: str | None = None) -> "subprocess.Popen[str]":
        """Start the command in a session of its own. `server` is the address of a process that forks it, see `tests/warm.py`."""
        environment = {**environ(), "TMPDIR": str(self.temporary)}
        self.errors = (self.folder / f"{self.run.name}.err").open("a+")
        return ForkedPopen(
            command or self.command,
            env=environment | ({SERVERS: server} if server else {}),
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            text=True,
            start_new_session=True,
            server=server,
        )

    def text(self) -> str:
        """Return what the command has written to its standard error stream."""
        return Path(self.errors.name).read_text(errors="replace")

    def rows(self) -> list[dict[str, Any]]:
        """Return the metrics of all iterations so far."""
        return read_rows(self.run)

    def digest(self) -> str:
        """Return the digest of the last iteration."""
        rows = self.rows()
        return str(rows[-1]["digest"]) if rows and rows[-1]["iteration"] == self.iterations else ""

    def starts(self) -> list[float]:
        """Return the times at which all ranks were connected, in seconds since the epoch."""
        path = self.run / "starts.jsonl"
        entries = map(json.loads, path.read_text().splitlines()) if path.exists() else []
        return [datetime.fromisoformat(entry["time"]).timestamp() for entry in entries if entry["event"] == "start"]

    def ranks(self, launcher: int) -> list[int]:
        """Return the processes of the live ranks, by their numbers."""
        found = [number for number, words in self.processes().items() if "rank" in words]
        return sorted((number for number in found if parent_of(number) == launcher), key=rank_of)

    def processes(self) -> dict[int, list[str]]:
        """Return the command lines of all live processes whose environment has the folder of this run."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                state = path.joinpath("stat").read_text().rpartition(")")[2].split()[0]
                variables = path.joinpath("environ").read_bytes().split(b"\0")
                if state not in "ZX" and f"TMPDIR={self.temporary}".encode() in variables:
                    found[int(path.name)] = path.joinpath("cmdline").read_text().split("\0")
            except OSError:
                continue
        return found

    def find(self, target: str, launcher: int) -> int:
        """Return the process of a role."""
        if target == "launcher":
            return launcher
        processes = self.processes()
        if target == "video process":
            return next(number for number, words in processes.items() if "video" in words)
        if target in ("environment worker", "replaced environment"):
            found = [number for number, words in processes.items() if "rank" in words]
            return next(number for number in found if parent_of(number) in found)
        return self.ranks(launcher)[{"trainer 0": 0, "trainer 1": 1, "player": 2}[target]]


def read_rows(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of all iterations of a run folder so far."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def rank_of(process: int) -> int:
    """Return the number of a rank, from its environment variables."""
    variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return next((int(text.partition(b"=")[2]) for text in variables if text.startswith(b"LOCKSTEP_RANK=")), -1)


def parent_of(process: int) -> int:
    """Return the id of the parent of a process."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until the condition holds; return False after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
