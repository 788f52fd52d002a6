"""Runs on a real Slurm cluster of two nodes: the digests of one process, also after requeues and faults."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.clusters.slurm_cluster import SlurmCluster, running_cluster
from tests.conftest import Finished
from tests.live_runs import digests, reached, wait_for

from lockstep.processes.exit_codes import BAD_INPUT, DONE, IN_USE

pytestmark = [pytest.mark.slow, pytest.mark.command("sbatch", "slurmctld", "slurmd", "munged")]

ITERATIONS = 20
WORDS = (
    *("train", "cartpole", "--plan.shards", 4, "--env.count", 4, "--rollout.steps", 64, "--runtime.compile", "off"),
    *("--run.checkpoint-every", 1, "--total-steps", 4 * 64 * ITERATIONS),
)
Submit = Callable[..., tuple[Path, str]]


@pytest.fixture(name="cluster", scope="module")
def fixture_cluster() -> Iterator[SlurmCluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(name="alone", scope="module")
def fixture_alone(run_in, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("alone")
    run_in(folder, *WORDS, "--name", "alone", "--ranks", 1)
    return digests(folder / "runs/alone")


@pytest.fixture(name="submit")
def fixture_submit(run_cli, cluster: SlurmCluster, tmp_path: Path) -> Submit:
    """Return `submit(*words)`, which submits the run and returns its folder and the id of its job."""

    def submit(*words: object) -> tuple[Path, str]:
        done: Finished = run_cli(*WORDS, "--on", "slurm", "--name", "run", *words, env=cluster.environ)
        assert (done.rc, done.stderr) == (DONE, ""), done
        first = done.stdout.splitlines()[0]
        assert first.startswith("submitted job ")
        return tmp_path / "runs/run", first.split()[2]

    return submit


def log(run: Path) -> str:
    path = run / "job/slurm.log"
    return path.read_text() if path.exists() else ""


def wait_for_end(cluster: SlurmCluster, run: Path, job: str) -> None:
    def ended() -> bool:
        return cluster.state(job) not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "CONFIGURING")

    wait_for(ended, "the end of the job", 200)
    assert cluster.state(job) == "COMPLETED", log(run)


def test_ranks_on_two_nodes_have_the_digests_of_one_process(
    alone: list[str], cluster: SlurmCluster, submit: Submit, run_cli
) -> None:
    run, job = submit("--ranks", 4, "--job", "nodes=2", "comment=a b")
    again = run_cli(*WORDS, "--on", "slurm", "--name", "run", "--ranks", 4, "--resume", env=cluster.environ)
    assert (again.rc, again.stdout) == (IN_USE, "")
    assert again.stderr.startswith(f"lockstep: runs/run is in use: job {job} of Slurm trains it (")
    watched = run_cli("watch", "run", env=cluster.environ)
    assert watched.rc == DONE, watched
    assert "done: runs/run" in watched.stdout
    wait_for_end(cluster, run, job)
    assert digests(run) == alone
    assert "connecting 4 ranks that srun has started" in log(run)


@pytest.mark.exhaustive
@pytest.mark.parametrize("plan", ["1:2", "2:1"])
def test_plans_on_two_nodes_have_the_digests_of_one_process(
    plan: str, alone: list[str], cluster: SlurmCluster, submit: Submit
) -> None:
    run, job = submit("--plan", plan, "--ranks", 3, "--job", "nodes=2")
    wait_for_end(cluster, run, job)
    assert digests(run) == alone
    assert "connecting 3 ranks that srun has started" in log(run)


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [["scontrol", "requeue"], ["scancel", "--signal=USR1"]], ids=" ".join)
def test_job_that_is_put_back_into_the_queue_goes_on(
    alone: list[str], cluster: SlurmCluster, submit: Submit, command: list[str]
) -> None:
    run, job = submit("--ranks", 2)
    wait_for(reached(run, 3), "the third iteration")
    cluster.run(*command, job)
    wait_for_end(cluster, run, job)
    assert digests(run) == alone
    assert "Restarts=1" in cluster.run("scontrol", "show", "job", job)
    assert "resuming run from iteration " in log(run)
    assert not (run / "job/slurm.faults").exists()


def test_run_of_a_waiting_job_is_not_trained_here(
    alone: list[str], cluster: SlurmCluster, submit: Submit, run_cli
) -> None:
    run, job = submit("--ranks", 1, "--job", "begin=now+1hour")
    line = f"lockstep: runs/run is in use: job {job} of Slurm trains it (PENDING (BeginTime)); scancel {job} ends it\n"
    here = (*WORDS, "--name", "run", "--resume", "--ranks", 1)
    done = run_cli(*here, env=cluster.environ)
    assert (done.rc, done.stdout, done.stderr) == (IN_USE, "", line)
    cluster.run("scancel", job)
    wait_for(lambda: cluster.state(job) == "CANCELLED", "the end of the job")
    assert run_cli(*here, env=cluster.environ).rc == DONE
    assert digests(run) == alone


@pytest.mark.exhaustive
def test_killed_rank_starts_the_ranks_again_a_limited_number_of_times(
    alone: list[str], cluster: SlurmCluster, submit: Submit
) -> None:
    run, job = submit("--ranks", 2, "--restarts", 1)
    for count in (1, 2):
        wait_for(reached(run, 3 * count), "the iteration before the fault")
        wait_for(lambda: cluster.state(job) == "RUNNING" and ranks_of(cluster, job), "the ranks")
        os.kill(ranks_of(cluster, job)[0], signal.SIGKILL)
        wait_for(lambda count=count: faults(run) == count, "the fault")
    wait_for(lambda: cluster.state(job) == "FAILED", "the end of the job")
    assert "not started again: the limit of 1 restarts within an hour was reached" in log(run)
    submit("--ranks", 2, "--resume")
    assert faults(run) == 0
    wait_for(lambda: digests(run) == alone, "the end of the run")


def faults(run: Path) -> int:
    path = run / "job/slurm.faults"
    return len(path.read_text().splitlines()) if path.exists() else 0


def ranks_of(cluster: SlurmCluster, job: str) -> list[int]:
    """Return the ids of the ranks of a job."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, variables = (process.joinpath(name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        except OSError:
            continue
        mine = {f"SLURM_JOB_ID={job}".encode(), f"SLURM_CONF={cluster.environ['SLURM_CONF']}".encode()}
        if b"lockstep" in words and b"train" in words and b"srun" not in words and mine <= set(variables):
            found.append(int(process.name))
    return found


@pytest.mark.exhaustive
def test_run_goes_on_with_the_ranks_of_the_node_that_is_left(
    alone: list[str], cluster: SlurmCluster, submit: Submit
) -> None:
    run, job = submit("--ranks", "2:4", "--job", "nodes=2")
    wait_for(reached(run, 3), "the third iteration")
    cluster.kill_node("b")
    try:
        wait_for_end(cluster, run, job)
    finally:
        cluster.start_node("b")
    assert digests(run) == alone
    assert "4 ranks, cpu, in runs/run" in log(run)
    assert "resuming run from iteration " in log(run)
    assert ": CartPole-v1, 2 ranks, cpu, in runs/run" in log(run)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--ranks", "4", "--job", "partition=x"], "sbatch failed: invalid partition specified: x"),
        (["--ranks", "3:4", "--job", "nodes=4", "mem=9000G"], "sbatch failed: allocation failure: Requested node configuration is not available"),
        (["--ranks", "4", "--job", "nodes=4"], "sbatch failed: allocation failure: Requested node configuration is not available"),
        (["--ranks", "4", "--job", "nope=1"], "sbatch failed: unrecognized option '--nope=1'"),
    ],
)  # fmt: skip
def test_job_that_can_never_start_is_refused(
    run_cli, cluster: SlurmCluster, tmp_path: Path, words: list[str], error: str
) -> None:
    done: Finished = run_cli(*WORDS, "--on", "slurm", *words, env=cluster.environ)
    assert (done.rc, done.stdout, done.stderr) == (BAD_INPUT, "", f"lockstep: --on is 'slurm': {error}\n")
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.exhaustive  # sbatch tries for 9 seconds
def test_cluster_that_does_not_answer_is_one_line(run_cli, cluster: SlurmCluster, tmp_path: Path) -> None:
    config = tmp_path / "slurm.conf"
    lines = Path(cluster.environ["SLURM_CONF"]).read_text().splitlines()
    config.write_text("\n".join("SlurmctldPort=1" if line.startswith("SlurmctldPort") else line for line in lines))
    done: Finished = run_cli(*WORDS, "--on", "slurm", env={"SLURM_CONF": str(config)})
    assert (done.rc, done.stdout) == (BAD_INPUT, "")
    assert done.stderr == (
        "lockstep: --on is 'slurm': sbatch failed: allocation failure: Unable to contact slurm controller (connect failure)\n"
    )
    assert list((tmp_path / "runs").iterdir()) == []
