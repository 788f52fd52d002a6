"""Sweeps on a real cluster of Ray with two raylets: the digests of a local sweep, also after a raylet was killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live_runs import digests, processes_with, wait_for

from lockstep.processes.exit_codes import BAD_INPUT, DONE, STOPPED_BY_SIGNAL

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.extra("ray", "optuna")]

WORDS = (
    *("sweep", "cartpole", "--runtime.compile", "off", "--env.count", 4, "--rollout.steps", 64),
    *("--run.checkpoint-every", 1, "--over", "run.seed=1..3", "--total-steps", 4 * 64 * 200),
)
GRID = ("--over", "ppo.epochs=1,2")


@pytest.fixture(name="cluster")
def fixture_cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # Ray's default is 15: other tests could take all of the time
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        cluster.add_node(num_cpus=1)
        yield cluster
        cluster.shutdown()


def results(sweep: Path) -> dict[str, list[str]]:
    """Return the digests of all runs of a sweep, by name."""
    return {run.name: digests(run) for run in sweep.glob("runs/*")}


def processes_of(sweep: Path) -> list[int]:
    """Return the ids of the processes that train runs of the sweep."""
    return processes_with("train", str(sweep / "runs"))


def test_runs_of_a_lost_raylet_start_again(cluster: Any, run_cli, begin, tmp_path: Path) -> None:
    assert run_cli(*WORDS, *GRID, "--out", "here").rc == DONE
    there = (*WORDS, *GRID, "--out", "there", "--on", "ray", "--job", f"address={cluster.address}")
    driver = begin(*there, cold=True)
    wait_for(lambda: len(processes_of(tmp_path / "there")) == 2, "two runs")
    wait_for(lambda: len(list(tmp_path.glob("there/runs/*/checkpoints/*"))) > 5, "checkpoints")
    cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)
    out, err = driver.communicate(timeout=250)
    assert driver.returncode == DONE, err
    assert out.count(" 3 of 3 ") == 2
    assert "(raylet)" not in out + err
    logs = "".join(log.read_text() for log in tmp_path.glob("there/logs/*"))
    assert logs.count("the run was lost with its actor; starting again (restart 1 of 3)") == 1
    assert results(tmp_path / "there") == results(tmp_path / "here")


def test_search_on_the_cluster_finds_the_trials_of_a_local_one(cluster: Any, run_cli, tmp_path: Path) -> None:
    search = (*WORDS[:-1], 4 * 64 * 20, "--trials", 3, "--search", "ppo.learning_rate=log(1e-4,1e-2)")
    assert run_cli(*search, "--out", "here", "--jobs", 2).rc == DONE
    there = ("--out", "there", "--on", "ray", "--job", f"address={cluster.address}", "--jobs", 2)
    done = run_cli(*search, *there)
    assert done.rc == DONE, done
    assert len(results(tmp_path / "there")) == 9
    assert results(tmp_path / "there") == results(tmp_path / "here")


def test_driver_that_is_asked_to_stop_or_killed_leaves_no_run(cluster: Any, begin, tmp_path: Path) -> None:
    there = (*WORDS, *GRID, "--out", "there", "--on", "ray", "--job", f"address={cluster.address}")
    for number, code in ((signal.SIGTERM, STOPPED_BY_SIGNAL), (signal.SIGKILL, -signal.SIGKILL)):
        driver = begin(*there, cold=True)
        wait_for(lambda: len(processes_of(tmp_path / "there")) == 2, "two runs")
        wait_for(lambda: any(tmp_path.glob("there/runs/*/checkpoints/*")), "a checkpoint")
        os.kill(driver.pid, number)
        driver.communicate(timeout=60)
        assert driver.returncode == code
        wait_for(lambda: not processes_of(tmp_path / "there"), "the end of all runs", 60)


def test_run_that_no_host_has_room_for_is_refused(cluster: Any, run_cli, tmp_path: Path) -> None:
    words = ("--plan.shards", 2, "--ranks", 2, "--out", "there", "--on", "ray", "--job", f"address={cluster.address}")
    done = run_cli(*WORDS, *words)
    assert (done.rc, done.stdout) == (BAD_INPUT, "")
    assert (
        done.stderr.splitlines()[-1]
        == "lockstep: --ranks is 2: no host of the cluster has room for a run of this many ranks"
    )
    assert not (tmp_path / "there").exists()
