"""Workers that die, hang or fail, and ranks that are killed: every wait ends, and no worker survives."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from lockstep.envs.catalog import make_engine
from lockstep.envs.settings import EnvConfig
from lockstep.envs.subprocesses import SubprocessEngine

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the state of processes from /proc"),
]


def start_engine(timeout: float = 20.0) -> SubprocessEngine:
    """Create and reset an engine with environments 3, 4 and 5."""
    config = EnvConfig(id="CartPole-v1", engine="gymnasium-async", count=6, timeout=timeout)
    engine = make_engine(config, seed=1, shard=1, shards=2)
    assert isinstance(engine, SubprocessEngine)
    engine.reset()
    return engine


def worker_pids(engine: SubprocessEngine) -> list[int]:
    return [worker.pid for worker in engine._workers.values()]


def alive(pid: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_end(pids: list[int], seconds: float = 10.0) -> bool:
    """Wait for processes to end; return False if one of them still runs after `seconds`."""
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(alive, pids))


ACTIONS = np.zeros(3, dtype=np.int64)


@pytest.mark.timeout(60)
def test_a_killed_worker_is_named() -> None:
    engine = start_engine()
    pids = worker_pids(engine)
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(
        RuntimeError, match=r"the process of environment 4 \(exit code -9\) of CartPole-v1 died during step"
    ):
        engine.step(ACTIONS)
    assert all_end(pids)
    engine.close()


@pytest.mark.timeout(60)
def test_a_worker_that_does_not_answer_is_named() -> None:
    engine = start_engine(timeout=0.5)
    pids = worker_pids(engine)
    os.kill(pids[2], signal.SIGSTOP)
    with pytest.raises(
        RuntimeError, match=r"environment 5 of CartPole-v1 did not answer to step within env.timeout = 0.5 seconds"
    ):
        engine.step(ACTIONS)
    assert all_end(pids)


@pytest.mark.timeout(60)
def test_a_failing_worker_is_named() -> None:
    engine = start_engine()
    pids = worker_pids(engine)
    with pytest.raises(RuntimeError, match=r"environment 4 \(CartPole-v1\) failed: AssertionError"):
        engine.step(np.array([0, 9, 0]))
    assert all_end(pids)


@pytest.mark.timeout(60)
def test_close_ends_stopped_workers_and_workers_with_inherited_handlers() -> None:
    handler = signal.signal(signal.SIGTERM, lambda *_: None)  # a rank has such a handler, which its forks inherit
    try:
        engine = start_engine()
        pids = worker_pids(engine)
        os.kill(pids[0], signal.SIGSTOP)
        engine.close()
        assert all_end(pids)
    finally:
        signal.signal(signal.SIGTERM, handler)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_rank(signal_number: signal.Signals, environ: dict[str, str]) -> None:
    program = (
        "from lockstep.envs.catalog import make_engine; from lockstep.envs.settings import EnvConfig; import time\n"
        "engine = make_engine(EnvConfig(id='CartPole-v1', engine='gymnasium-async', count=3), 1, 0, 1); engine.reset()\n"
        "print(*[worker.pid for worker in engine._workers.values()], flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environ) as rank:
        assert rank.stdout is not None
        pids = [int(word) for word in rank.stdout.readline().split()]
        try:
            assert len(pids) == 3
            assert all(map(alive, pids))
            rank.send_signal(signal_number)
            assert all_end(pids)
        finally:
            rank.kill()


class UsesTorch(gym.Wrapper):
    """CartPole that computes with PyTorch in every step."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        assert torch.ones(300_000).sin().sum() > 0
        return self.env.step(action)


gym.register("lockstep-tests/UsesTorch-v0", UsesTorch)  # type: ignore[arg-type]


@pytest.mark.timeout(60)
def test_environment_may_compute_with_threads_of_pytorch() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(300_000).sin()  # starts threads, which a fork does not have
        config = EnvConfig(id="lockstep-tests/UsesTorch-v0", engine="gymnasium-async", count=2, timeout=20)
        engine = make_engine(config, seed=1, shard=0, shards=1)
        engine.reset()
        engine.step(np.zeros(2, dtype=np.int64))
        engine.close()
    finally:
        torch.set_num_threads(threads)


def test_engine_can_be_closed_twice_and_before_the_first_reset() -> None:
    engine = make_engine(EnvConfig(engine="gymnasium-async", count=2), 1, 0, 1)
    engine.close()
    engine.close()
