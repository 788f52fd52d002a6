"""Tests of reading the rank from the environment variables of launchers."""

import os
import subprocess
import sys

import pytest

from lockstep.runtime.rank_info import RankInfo, find_rank_info, launcher_process

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "6"}
SRUN = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
RAY = {
    "LOCKSTEP_RAY_RANK": "3",
    "LOCKSTEP_RAY_SIZE": "4",
    "LOCKSTEP_RAY_LOCAL_RANK": "1",
    "LOCKSTEP_RAY_LOCAL_SIZE": "2",
}
KUBERNETES = {"JOB_COMPLETION_INDEX": "3", "JOB_COMPLETIONS": "4"}
# variables of a script of `sbatch --ntasks 4`, and of the shell of an interactive `salloc`
BATCH = {"SLURM_JOB_ID": "12", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
SHELL = BATCH | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [(TORCHRUN, "torchrun"), (OPEN_MPI, "mpirun"), (HYDRA, "mpiexec"), (SRUN, "srun"), (RAY, "Ray")],
)
def test_every_launcher_is_recognized(variables: dict[str, str], launcher: str) -> None:
    assert find_rank_info(variables) == RankInfo(3, 4, 1, 2, launcher)


@pytest.mark.parametrize("variables", [{}, {"RANK": "0"}, BATCH, SHELL])
def test_process_without_a_launcher_has_no_rank(variables: dict[str, str]) -> None:
    assert find_rank_info(variables) is None


def test_pod_of_a_job_of_kubernetes_does_not_know_its_host() -> None:
    assert find_rank_info(KUBERNETES) == RankInfo(3, 4, None, None, "Kubernetes")
    assert find_rank_info({"JOB_COMPLETION_INDEX": "3"}) is None


def test_launcher_takes_precedence_over_the_scheduler() -> None:
    assert find_rank_info(SRUN | {"SLURM_PROCID": "0"} | RAY) == RankInfo(3, 4, 1, 2, "Ray")
    assert find_rank_info(KUBERNETES | {"JOB_COMPLETION_INDEX": "0"} | TORCHRUN) == RankInfo(3, 4, 1, 2, "torchrun")
    assert find_rank_info(SRUN | OPEN_MPI | TORCHRUN | {"RANK": "0"}) == RankInfo(0, 4, 1, 2, "torchrun")
    assert find_rank_info(SRUN | OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "2"}) == RankInfo(2, 4, 1, 2, "mpirun")
    assert find_rank_info(BATCH | OPEN_MPI) == RankInfo(3, 4, 1, 2, "mpirun")


def test_single_rank_is_on_one_host() -> None:
    rank_info = find_rank_info({"RANK": "0", "WORLD_SIZE": "1"})
    assert rank_info == RankInfo(0, 1, 0, 1, "torchrun")
    assert rank_info.on_one_host


def test_local_rank_is_unknown_if_the_launcher_does_not_set_it() -> None:
    rank_info = find_rank_info({"RANK": "0", "WORLD_SIZE": "2"})
    assert rank_info == RankInfo(0, 2, None, None, "torchrun")
    assert not rank_info.on_one_host


@pytest.mark.parametrize(
    ("tasks", "node", "local_size"),
    [("4", "0", 4), ("2(x3),1", "2", 2), ("2(x3),1", "3", 1), ("1,2", "1", 2), ("", "0", None), ("2", "5", None)],
)
def test_slurm_tasks_per_node_give_the_local_size(tasks: str, node: str, local_size: int | None) -> None:
    rank_info = find_rank_info(SRUN | {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": node})
    assert rank_info is not None
    assert rank_info.local_size == local_size


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        (TORCHRUN | {"RANK": "4"}, "RANK is 4: it must be below WORLD_SIZE, which is 4"),
        (TORCHRUN | {"RANK": "x"}, "RANK is 'x': the launcher must set it to a whole number, at least 0"),
        (TORCHRUN | {"WORLD_SIZE": "0"}, "WORLD_SIZE is '0': the launcher must set it to a whole number, at least 1"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "-1"}, "OMPI_COMM_WORLD_LOCAL_SIZE is '-1'"),
    ],
)
def test_invalid_variables_are_reported_in_one_line(variables: dict[str, str], line: str) -> None:
    with pytest.raises(ValueError, match="is") as caught:
        find_rank_info(variables)
    assert str(caught.value).startswith(line)


def test_launcher_process_skips_shells(environ: dict[str, str]) -> None:
    code = (
        "import os\n"
        "from lockstep.runtime.rank_info import find_rank_info, launcher_process\n"
        "print(launcher_process(find_rank_info()), os.getppid())\n"
    )
    # with `true` at the end the shells fork instead of replacing themselves by the last command
    command = ["sh", "-c", "sh -c \"$0 -c '$1'; true\"; true", sys.executable, code]
    for variables in (OPEN_MPI, HYDRA, SRUN):
        done = subprocess.run(command, env=environ | variables, capture_output=True, text=True, check=True)
        launcher, parent = map(int, done.stdout.split())
        assert launcher == os.getpid() != parent


def test_launcher_of_a_rank_started_by_lockstep_is_its_parent() -> None:
    assert launcher_process(RankInfo(0, 2)) == os.getppid()
