"""The servers that fork the programs of tests."""

from pathlib import Path

import pytest
import torch

MODULE = """
import os
from pathlib import Path

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

Path(f"process-{os.getpid()}").write_bytes(Path("/proc/self/cmdline").read_bytes())
gym.register("Mine-v0", CartPoleEnv, max_episode_steps=50)
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA does not work in forked processes")
def test_commands_ranks_and_sidecars_are_forked_from_servers(run_cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    short = ("--total-steps", 512, "--rollout.steps", 32, "--ppo.minibatches", 4, "--run.progress", "off")
    evaluated = ("--run.evaluate-every", 1, "--run.evaluate-episodes", 1)
    words = ("--env.module", "mine", "--plan.shards", 2, "--ranks", 2, *short, *evaluated)
    done = run_cli("train", *words, env={"MUJOCO_GL": "egl", "HF_HOME": str(tmp_path)})
    assert done.rc == 0, done
    commands = [path.read_bytes().split(b"\0") for path in tmp_path.glob("process-*")]
    assert len(commands) >= 4, "the command, two ranks and the process that evaluates, which may be started again"
    assert all(b"tests.warm" in words for words in commands), "a process was started as usual, which takes 2 s longer"
