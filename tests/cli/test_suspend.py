"""Ctrl-Z and `fg`: the ranks stop and continue with the command, and none of them counts as silent."""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.live_runs import ranks_of, reached, rows, wait_for

WORDS = (
    *("train", "--env", "CartPole-v1", "--env.engine", "gymnasium-async", "--env.count", 2, "--plan.shards", 2),
    *("--rollout.steps", 32, "--total-steps", 10**7, "--runtime.compile", "off", "--run.progress", "off"),
)
TIMEOUT = 10


def stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.slow
def test_ranks_stop_and_go_on_with_the_command(begin, tmp_path: Path) -> None:
    run = tmp_path / "run"
    limits = ("--runtime.timeout", TIMEOUT, "--env.timeout", TIMEOUT)
    process = begin(*WORDS, *limits, "--ranks", 2, "--out", tmp_path, "--name", "run")
    wait_for(reached(run, 2), "2 iterations")
    os.kill(process.pid, signal.SIGTSTP)
    wait_for(lambda: stopped(process.pid), "the command stops")
    ranks = ranks_of(run)
    workers = [int(child) for rank in ranks for child in Path(f"/proc/{rank}/task/{rank}/children").read_text().split()]
    assert len(ranks) == 2
    assert len(workers) >= 2
    wait_for(lambda: all(map(stopped, (*ranks, *workers))), "the ranks and their environments stop")
    done = len(rows(run))
    time.sleep(TIMEOUT + 4)  # longer than any limit
    assert len(rows(run)) == done
    os.kill(process.pid, signal.SIGCONT)
    wait_for(reached(run, done + 3), "3 more iterations")
    assert sorted(ranks_of(run)) == sorted(ranks)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, out + err
    assert "again" not in err
