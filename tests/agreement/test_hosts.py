"""Bit-identical results on two hosts, which are two network namespaces of this machine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live_runs import digests
from tests.machines import ADDRESSES, on_host, two_hosts

pytestmark = pytest.mark.slow

TASK = ("--env", "Pendulum-v1", "--policy.normalize-observations", "--ppo.normalize-rewards", "--plan.shards", 4)
SHORT = ("--rollout.steps", 32, "--total-steps", 8 * 32 * 6, "--run.progress", "off", "--run.checkpoint-every", 4)


@pytest.fixture(name="hosts", scope="module")
def fixture_hosts() -> Iterator[None]:
    with two_hosts():
        yield


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ((0, 0, 1), ("--plan", "1:2", "--plan.lag", 1, "--plan.share-data")),
        ((0, 0, 1, 1), ()),  # gradients are added along the chain of hosts
        pytest.param((0, 0, 1), ("--plan", "1:2", "--plan.lag", 1), marks=pytest.mark.exhaustive),
        pytest.param((0, 0, 1), ("--plan.share-data",), marks=pytest.mark.exhaustive),
        pytest.param((0, 0, 1), ("--plan", "2:1"), marks=pytest.mark.exhaustive),
        pytest.param((0, 0, 0, 1, 1), ("--plan", "1:4"), marks=pytest.mark.exhaustive),
    ],
)
def test_plans_over_two_hosts_give_the_bits_of_one_rank(
    places: tuple[int, ...], words: tuple[object, ...], hosts: None, run_cli, tmp_path: Path, environ: dict[str, str]
) -> None:
    single_rank_words = words[2:] if words[:1] == ("--plan",) else words
    assert run_cli("train", *TASK, *SHORT, *single_rank_words, "--name", "alone").rc == 0
    train_on_hosts(places, (*TASK, *SHORT, *words), tmp_path, environ)
    assert digests(tmp_path / "runs" / "hosts") == digests(tmp_path / "runs" / "alone")


def train_on_hosts(places: tuple[int, ...], words: tuple[object, ...], folder: Path, environ: dict[str, str]) -> None:
    """Train a run `runs/hosts` in `folder`, with one rank on the host `places[rank]` each."""
    meeting = ("--runtime.rendezvous", f"tcp://{ADDRESSES[0]}:29519")
    command = ["train", *words, *meeting, "--out", folder / "runs", "--name", "hosts"]
    ranks = []
    for rank, place in enumerate(places):
        local = {"LOCAL_RANK": places[:rank].count(place), "LOCAL_WORLD_SIZE": places.count(place)}
        rank_variables = {"RANK": rank, "WORLD_SIZE": len(places), **local}
        variables = environ | {name: str(value) for name, value in rank_variables.items()}
        run = [*on_host(place), sys.executable, "-m", "lockstep", *map(str, command)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ranks.append(subprocess.Popen(run, cwd=folder, env=variables, **pipes))
    try:
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * len(places), "\n".join(outputs)


SPOTS = """
import gymnasium as gym
import numpy as np


class Spots(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (1, 60, 60), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 9
        return self.seen(), {}

    def seen(self):
        return self.np_random.integers(256, size=(1, 60, 60), dtype=np.uint8)

    def step(self, action):
        self.left -= 1
        return self.seen(), float(action), self.left == 0, False, {}


gym.register("Spots-v0", Spots)
"""


@pytest.mark.command("g++")
@pytest.mark.parametrize("places", [pytest.param((0, 1), marks=pytest.mark.exhaustive), (0, 0, 1, 1)])
def test_gradients_that_are_added_during_the_backward_pass_give_the_bits_of_one_rank(
    places: tuple[int, ...], hosts: None, run_cli, tmp_path: Path, environ: dict[str, str]
) -> None:
    """The linear layer has 2 MB, and a shard has 128 rows."""
    (tmp_path / "spots.py").write_text(SPOTS)
    policy = ("--policy.shared",)
    steps = ("--rollout.steps", 64, "--ppo.minibatches", 1, "--ppo.epochs", 2, "--total-steps", 8 * 64 * 2)
    words = ("--env.module", "spots", "--env.count", 8, "--plan.shards", 4, *policy, *steps, "--run.progress", "off")
    assert run_cli("train", *words, "--name", "alone").rc == 0
    train_on_hosts(places, words, tmp_path, environ | {"PYTHONPATH": f"{tmp_path}:{environ.get('PYTHONPATH', '')}"})
    assert digests(tmp_path / "runs" / "hosts") == digests(tmp_path / "runs" / "alone")
