"""A run whose terminal or pipe is closed ends with a checkpoint, and writes every iteration once."""

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live_runs import reached, rows, wait_for

pytestmark = pytest.mark.slow

ITERATIONS = 1_000
TRAIN = (
    *("train", "--env", "CartPole-v1", "--env.engine", "gymnasium", "--env.count", 4, "--plan.shards", 2, "--rollout.steps", 64),
    *("--total-steps", ITERATIONS * 256, "--ppo.epochs", 1, "--ppo.minibatches", 1, "--ranks", 2, "--name", "run"),
)  # fmt: skip
OPENS_TERMINAL = """
import os, sys
os.setsid()
os.close(os.open(sys.argv[1], os.O_RDWR))  # the controlling terminal
os.execv(sys.executable, [sys.executable, "-m", "lockstep", *sys.argv[2:]])
"""


def check_stopped(run: Path, why: str) -> None:
    numbers = [row["iteration"] for row in rows(run)]
    assert numbers == list(range(1, len(numbers) + 1)), "every iteration once"
    assert len(numbers) < ITERATIONS
    end = json.loads((run / "starts.jsonl").read_text().splitlines()[-1])
    assert (end["event"], end["how"], end["why"]) == ("end", "stopped", why)
    assert (run / "checkpoints" / f"{numbers[-1]:08d}").is_dir()


def test_closed_pipe_stops_the_run(tmp_path: Path, environ: dict[str, str]) -> None:
    command = [sys.executable, "-m", "lockstep", *map(str, TRAIN), "--out", str(tmp_path), "--run.log-every", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("starting run")
        assert process.stdout.readline().startswith("iteration 1/")
        process.stdout.close()
        assert process.wait(60) == 75
        assert process.stderr.read() == ""
    check_stopped(tmp_path / "run", "SIGPIPE")


def test_closed_terminal_stops_the_run(tmp_path: Path, environ: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    words = [os.ttyname(theirs), *map(str, TRAIN), "--out", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-c", OPENS_TERMINAL, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    ) as process:
        os.close(theirs)
        os.set_blocking(ours, False)

        def drawn_and_reached() -> bool:
            with contextlib.suppress(BlockingIOError):
                os.read(ours, 1 << 16)
            return reached(tmp_path / "run", 3)()

        wait_for(drawn_and_reached, "3 iterations")
        os.close(ours)
        assert process.wait(60) == 75
    check_stopped(tmp_path / "run", "SIGHUP")
