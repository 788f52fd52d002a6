"""Watchdog of ranks that another launcher has started."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.live_runs import wait_for
from tests.warm import Warm

PROGRAM = """
import os, signal, sys, time
from lockstep.processes import heartbeat
from lockstep.runtime.watchdog import watchdog
size = int(sys.argv[1])
with watchdog(1, size, 1.0):
    heartbeat.set_iteration(5)
    heartbeat.enter("rollout")
    heartbeat.beat(3)
    {body}
print("end")
"""
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc")
CONTAINED = (
    shutil.which("unshare") and subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode == 0
)
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(name="run")
def fixture_run(environ: dict[str, str]) -> Run:
    """Return `run(body, size)`, which runs a program with a watchdog."""

    def run(body: str, size: int = 2, prefix: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
        command = [*prefix, sys.executable, "-c", PROGRAM.format(body=body), str(size)]
        # in its own session: a test below signals the whole process group, and would resume the stopped rank of another
        own = {"start_new_session": True, "capture_output": True, "text": True}
        return subprocess.run(command, env=environ, timeout=30, check=False, **own)

    return run


@pytest.mark.parametrize("body", ["time.sleep(60)", "sum(range(10**11))"])
def test_silent_rank_prints_its_stack_traces_and_is_killed(run: Run, body: str) -> None:
    """`sum` holds the lock of the interpreter, as some environments in C++ do."""
    done = run(body)
    assert done.returncode == -signal.SIGKILL
    first, *others = done.stderr.splitlines()
    where = r"rank 1 on host \S+ made no progress for \d s in stage rollout, iteration 5, environment 3"
    assert re.fullmatch(rf"lockstep: {where} \(see runtime.timeout\); its stack traces:", first)
    assert 'File "<string>", line 10 in <module>' in "\n".join(others)


@pytest.mark.skipif(not CONTAINED, reason="processes can't be isolated here")
@pytest.mark.parametrize("body", ["time.sleep(60)", "sum(range(10**11))"])
def test_silent_rank_that_is_process_1_of_a_container_ends(run: Run, body: str) -> None:
    done = run(f"assert os.getpid() == 1; {body}", prefix=CONTAINER)
    assert done.returncode == signal.SIGRTMAX
    assert re.search(r"made no progress for \d s in stage rollout", done.stderr)


def test_stopped_rank_is_killed(run: Run) -> None:
    done = run("os.kill(os.getpid(), signal.SIGSTOP)")
    assert done.returncode == -signal.SIGKILL
    assert re.search(r"was stopped by a signal for \d s in stage rollout", done.stderr)


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ("[(heartbeat.beat(2), time.sleep(0.1)) for _ in range(20)]", 2),
        ("with heartbeat.waiting(): time.sleep(2)", 2),
        ("time.sleep(2)", 1),
        ("[os.kill(0, number) for number in (signal.SIGWINCH, signal.SIGCONT)]", 2),
    ],
    ids=["moves", "waits", "alone", "signals"],
)
def test_other_ranks_are_not_killed(run: Run, body: str, size: int) -> None:
    done = run(body, size)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_system_without_memory_files_has_no_watchdog(environ: dict[str, str]) -> None:
    program = f"import os; del os.memfd_create\n{PROGRAM.format(body='time.sleep(2)')}"
    done = subprocess.run(
        [sys.executable, "-c", program, "2"], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_watchdog_ends_with_its_rank(environ: dict[str, str]) -> None:
    command = [sys.executable, "-c", PROGRAM.format(body="print(1, flush=True); signal.pause()"), "2"]
    with subprocess.Popen(command, env=environ | {"MARK": str(os.getpid())}, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()
        wait_for(lambda: watchdogs_of(rank.pid), "the watchdog", 10)
        rank.kill()
    wait_for(lambda: not watchdogs_of(rank.pid), "no watchdog", 5)


def watchdogs_of(rank: int) -> list[int]:
    """Return the processes of watchdogs, of which `rank` is the parent or was."""
    mark, found = f"MARK={os.getpid()}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables, words = process.joinpath("environ").read_bytes(), process.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if mark in variables and b"lockstep.runtime.watchdog" in words and int(process.name) != rank:
            found.append(int(process.name))
    return found


HANGING = """
import time
import gymnasium as gym

class Hanging(gym.Wrapper):
    '''CartPole whose environments of the second shard hang in step 100.'''

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        self.left = 100

    def step(self, action):
        self.left -= 1
        if self.left == 0:
            time.sleep(1000)
        return self.env.step(action)

gym.register("Hanging-v0", Hanging)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "shared"])
def test_player_that_hangs_is_named_after_the_timeout(
    warm: Warm, environ: dict[str, str], tmp_path: Path, backend: str
) -> None:
    """Ranks that another launcher has started. Without a watchdog, the rank would hang for good."""
    (tmp_path / "hanging.py").write_text(HANGING)
    words = [
        *("train", "--env", "Hanging-v0", "--env.module", "hanging", "--env.engine", "gymnasium", "--env.count", 2),
        *("--plan", "1:1", "--rollout.steps", 32, "--ppo.minibatches", 1, "--total-steps", 6400),
        *("--run.progress", "off", "--runtime.compile", "off"),
        *("--runtime.backend", backend, "--runtime.timeout", 4, "--runtime.rendezvous", f"file://{tmp_path}/meet"),
    ]
    by_hand = "RANK={rank} WORLD_SIZE={size}"
    launcher = warm.start(by_hand, 2, *words, cwd=tmp_path, environ=environ, module="tests.agreement.launcher")
    try:
        done = launcher.wait(60)
    finally:
        launcher.kill()
    assert re.search(
        r"made no progress for \d s in stage rollout, iteration 4, environment 0 \(see runtime.timeout\)", done.stderr
    )
    assert "hanging.py" in done.stderr, "the stack trace shows the environment"
    assert re.search(
        r"lockstep: rank 1 .*on host \S+ is lost in phase '\w+': its (connection was closed|process has ended)",
        done.stderr,
    )
