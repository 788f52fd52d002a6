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
    "words",
    [
        ("--plan", "1:2", "--plan.lag", 1, "--plan.share-data"),
        pytest.param(("--plan", "1:2", "--plan.lag", 1), marks=pytest.mark.exhaustive),
        pytest.param(("--plan.share-data",), marks=pytest.mark.exhaustive),
        pytest.param(("--plan", "2:1"), marks=pytest.mark.exhaustive),
    ],
)
def test_plans_over_two_hosts_give_the_bits_of_one_rank(
    words: tuple[object, ...], hosts: None, run_cli, tmp_path: Path, environ: dict[str, str]
) -> None:
    single_rank_words = words if words[0] != "--plan" else words[2:]
    assert run_cli("train", *TASK, *SHORT, *single_rank_words, "--name", "alone").rc == 0
    meeting = ("--runtime.rendezvous", f"tcp://{ADDRESSES[0]}:29519")
    command = ["train", *TASK, *SHORT, *words, *meeting, "--out", tmp_path / "runs", "--name", "hosts"]
    ranks = []
    for rank in range(3):  # ranks 0 and 1 on the first host, rank 2 on the second
        rank_variables = {"RANK": rank, "WORLD_SIZE": 3, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2 - rank // 2}
        variables = environ | {name: str(value) for name, value in rank_variables.items()}
        run = [*on_host(rank // 2), sys.executable, "-m", "lockstep", *map(str, command)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ranks.append(subprocess.Popen(run, cwd=tmp_path, env=variables, **pipes))
    try:
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0, 0], "\n".join(outputs)
    assert digests(tmp_path / "runs" / "hosts") == digests(tmp_path / "runs" / "alone")
