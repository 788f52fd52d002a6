"""Rollouts of slow ranks that end early, through the command line."""

from pathlib import Path

import pytest
from tests.live_runs import rows

pytestmark = pytest.mark.slow

MODULE = """
import os, time
import gymnasium as gym

class Slow(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action):
        time.sleep(0.005 * (os.environ.get("LOCKSTEP_RANK") == "1"))
        return self.env.step(action)

gym.register("Slow-v0", Slow, max_episode_steps=500)
"""
BATCH = 4 * 64
RUN = (
    *("--env", "Slow-v0", "--env.module", "slow", "--env.count", 4, "--rollout.steps", 64, "--plan.shards", 2),
    *(
        "--ppo.epochs",
        1,
        "--ppo.minibatches",
        2,
        "--plan.exact",
        "false",
        "--plan.preempt",
        0.5,
        "--run.progress",
        "off",
    ),
)


@pytest.mark.parametrize("backend", ["auto", "gloo"])
def test_a_slow_rank_takes_fewer_steps_and_the_run_resumes(run_cli, tmp_path: Path, backend: str) -> None:
    (tmp_path / "slow.py").write_text(MODULE)
    where = ("--ranks", 2, "--runtime.backend", backend, "--name", "run", "--total-steps", 4 * BATCH)
    finished = run_cli("train", *RUN, *where)
    assert finished.rc == 0, finished
    assert "plan.preempt: slow ranks took fewer steps: the config alone does not reproduce this run" in finished.stdout
    run = tmp_path / "runs" / "run"
    finished = run_cli("resume", run, "--env.module", "slow", "--ranks", 2, "--total-steps", 6 * BATCH)
    assert finished.rc == 0, finished
    iterations = rows(run)
    assert len(iterations) == 6
    for row in iterations:
        # one shard of two takes between a quarter of its steps and all
        assert 0 < row["preempted"] <= 0.375
    taken = sum(round(BATCH * (1 - row["preempted"])) for row in iterations)
    assert iterations[-1]["env_steps"] <= taken, "reset rows do not count either"
    finished = run_cli("verify", run)
    assert finished.rc == 2
    assert finished.stderr.startswith("lockstep: plan.preempt is 0.5: which steps were taken in")
    finished = run_cli("report", run)
    assert finished.rc == 0, finished
    assert "slow ranks took fewer steps than fast ones" in next(run.rglob("*.html")).read_text()
