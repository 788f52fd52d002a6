"""Sweeps as job arrays of a real Slurm cluster of two nodes: the digests of a local sweep."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clusters.slurm_cluster import SlurmCluster, running_cluster
from tests.live_runs import digests, wait_for

from lockstep.processes.exit_codes import DONE, IN_USE

pytestmark = [pytest.mark.slow, pytest.mark.command("sbatch", "slurmctld", "slurmd", "munged")]

WORDS = (
    *("sweep", "cartpole", "--runtime.compile", "off", "--env.count", 4, "--rollout.steps", 64, "--plan.shards", 2),
    *("--run.checkpoint-every", 1, "--over", "run.seed=1..3", "--over", "ppo.epochs=1,2", "--ranks", 2),
)


@pytest.fixture(name="cluster", scope="module")
def fixture_cluster() -> Iterator[SlurmCluster]:
    with running_cluster() as cluster:
        yield cluster


def results(sweep: Path) -> dict[str, list[str]]:
    """Return the digests of all runs of a sweep, by name."""
    return {run.name: digests(run) for run in sweep.glob("runs/*")}


def has_ended(cluster: SlurmCluster) -> bool:
    return not cluster.run("squeue", "-h")


def test_array_has_the_digests_of_a_local_sweep(cluster: SlurmCluster, run_cli, tmp_path: Path) -> None:
    words = (*WORDS, "--total-steps", 4 * 64 * 8)
    assert run_cli(*words, "--out", "here").rc == DONE
    there = (*words, "--out", "there", "--on", "slurm", "--job", "time=00:10:00", "--jobs", 2)
    submitted = run_cli(*there, env=cluster.environ)
    assert submitted.rc == DONE, submitted
    assert submitted.stdout.startswith("submitted job array ")
    again = run_cli(*there, env=cluster.environ)
    assert again.rc == IN_USE, again
    assert "lockstep: there is in use: job " in again.stderr
    wait_for(lambda: has_ended(cluster), "the end of the array", 200)
    shown = run_cli(*there, env=cluster.environ)
    assert shown.rc == DONE, shown
    assert shown.stdout.count(" 3 of 3 ") == 2
    assert results(tmp_path / "there") == results(tmp_path / "here")


@pytest.mark.exhaustive
def test_runs_of_a_lost_node_go_on(cluster: SlurmCluster, run_cli, tmp_path: Path) -> None:
    words = (*WORDS, "--total-steps", 4 * 64 * 300)
    assert run_cli(*words, "--out", "here").rc == DONE
    there = (*words, "--out", "there", "--on", "slurm")
    assert run_cli(*there, env=cluster.environ).rc == DONE
    wait_for(lambda: "b" in cluster.run("squeue", "-h", "-t", "running", "-o", "%N").split(), "a run on node b")
    wait_for(lambda: len(list(tmp_path.glob("there/runs/*/checkpoints/*"))) > 5, "checkpoints")
    cluster.kill_node("b")
    try:
        wait_for(lambda: has_ended(cluster), "the end of the array", 280)
    finally:
        cluster.start_node("b")
    assert run_cli(*there, env=cluster.environ).rc == DONE
    assert results(tmp_path / "there") == results(tmp_path / "here")


@pytest.mark.exhaustive
def test_cancelled_array_is_submitted_again(cluster: SlurmCluster, run_cli, tmp_path: Path) -> None:
    there = (*WORDS, "--total-steps", 4 * 64 * 8, "--out", "there", "--on", "slurm")
    assert run_cli(*there, env=cluster.environ).rc == DONE
    cluster.run("scancel", "--name=there")
    wait_for(lambda: has_ended(cluster), "the end of the array")
    again = run_cli(*there, env=cluster.environ)
    assert again.stdout.startswith("submitted job array "), again
    wait_for(lambda: has_ended(cluster), "the end of the array", 200)
    assert len(results(tmp_path / "there")) == 6
