"""This process's rank, read from the environment variables that launchers set. This module does not import PyTorch.

| launcher | rank, size | local rank, local size |
| --- | --- | --- |
| torchrun, `fabric run` | RANK, WORLD_SIZE | LOCAL_RANK, LOCAL_WORLD_SIZE |
| Open MPI | OMPI_COMM_WORLD_RANK, …_SIZE | OMPI_COMM_WORLD_LOCAL_RANK, …_LOCAL_SIZE |
| MPICH, Intel MPI (Hydra) | PMI_RANK, PMI_SIZE | MPI_LOCALRANKID, MPI_LOCALNRANKS |
| Slurm's srun | SLURM_PROCID, SLURM_STEP_NUM_TASKS | SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE |
| a Job of Kubernetes | JOB_COMPLETION_INDEX, JOB_COMPLETIONS | unknown |
| `--on ray` | LOCKSTEP_RAY_RANK, LOCKSTEP_RAY_SIZE | LOCKSTEP_RAY_LOCAL_RANK, LOCKSTEP_RAY_LOCAL_SIZE |
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["RankInfo", "find_rank_info", "launcher_process"]


@dataclass(frozen=True)
class RankInfo:
    """This process's rank, the number of ranks, and how the ranks connect."""

    rank: int
    size: int
    local_rank: int | None = None
    """Index among the ranks of this host; None: unknown until the ranks have connected."""
    local_size: int | None = None
    """Number of ranks on this host; None: unknown until the ranks have connected."""
    launcher: str = "lockstep"
    memory: int | None = None
    """File descriptor of the shared memory that lockstep's own launcher passes on; None: there is none."""
    rendezvous: str = ""
    """Address of the rendezvous, as in `runtime.rendezvous`; empty: not chosen yet."""
    secret: bytes | None = field(default=None, repr=False)
    """Secret that a process must have to be accepted as a rank of the run; None: there is none, or the files of the rendezvous contain it."""

    @property
    def on_one_host(self) -> bool:
        """True if all ranks are known to be on one host."""
        return self.size == (self.local_size or 1)


class _LocalRank(NamedTuple):
    """Index of a rank on its host and the number of ranks there; None: unknown."""

    rank: int | None
    size: int | None


@dataclass(frozen=True)
class _Launcher:
    """Names of the variables that a launcher sets for every rank."""

    name: str
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    counts_if_alone: bool = False
    """True if these variables show that the launcher started the process even if there is a single rank. If False, they
    are then ignored: a scheduler's interactive shell has them too.
    """


_LAUNCHERS = (
    # first, because another launcher may have started the programs of Ray
    _Launcher("Ray", "LOCKSTEP_RAY_RANK", "LOCKSTEP_RAY_SIZE", "LOCKSTEP_RAY_LOCAL_RANK", "LOCKSTEP_RAY_LOCAL_SIZE"),
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", counts_if_alone=True),
    _Launcher(
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Launcher("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # not SLURM_NTASKS: a batch script has it too, although no step has been started
    _Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    _Launcher("Kubernetes", "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"),  # the second is set by clusters/kubernetes.py
)


def find_rank_info(environ: Mapping[str, str] | None = None) -> RankInfo | None:
    """Read this process's rank from its environment variables; None if no launcher started it.

    Raises ValueError for an invalid variable, which the message names.
    """
    variables = os.environ if environ is None else environ
    for launcher in _LAUNCHERS:
        if launcher.rank not in variables or launcher.size not in variables:
            continue
        size = _number(variables, launcher.size, 1)
        if size == 1 and not launcher.counts_if_alone:
            continue
        rank = _number(variables, launcher.rank, 0)
        if rank >= size:
            raise ValueError(f"{launcher.rank} is {rank}: it must be below {launcher.size}, which is {size}")
        local = _local_rank(launcher, variables)
        if size == 1:
            local = _LocalRank(0, 1)
        return RankInfo(rank, size, local.rank, local.size, launcher.name)
    return None


def launcher_process(rank_info: RankInfo) -> int:
    """Return the process id of the launcher; 0 if unknown.

    That is the nearest ancestor without the rank's variables: a shell between launcher and rank has the variables too.
    """
    variable = next((launcher.rank for launcher in _LAUNCHERS if launcher.name == rank_info.launcher), "LOCKSTEP_RANK")
    process = os.getppid()
    with suppress(OSError, ValueError, IndexError):
        while process > 1 and _has_variable(process, variable):
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        return process
    return 0


def _has_variable(process: int, variable: str) -> bool:
    try:
        environ = Path(f"/proc/{process}/environ").read_bytes()
    except PermissionError:  # a process of the scheduler
        return False
    return any(entry.startswith(f"{variable}=".encode()) for entry in environ.split(b"\0"))


def _local_rank(launcher: _Launcher, variables: Mapping[str, str]) -> _LocalRank:
    if launcher.local_rank not in variables:
        return _LocalRank(None, None)
    local_rank = _number(variables, launcher.local_rank, 0)
    if launcher.local_size == "SLURM_STEP_TASKS_PER_NODE":
        tasks = _tasks_per_node(variables.get(launcher.local_size, ""))
        node = _number(variables, "SLURM_NODEID", 0) if "SLURM_NODEID" in variables else 0
        return _LocalRank(local_rank, tasks[node] if node < len(tasks) else None)
    if launcher.local_size in variables:
        return _LocalRank(local_rank, _number(variables, launcher.local_size, 1))
    return _LocalRank(local_rank, None)


def _tasks_per_node(text: str) -> list[int]:
    """Parse Slurm's notation: `2(x3),1` -> [2, 2, 2, 1]. Return an empty list for any other text."""
    tasks: list[int] = []
    for group in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", group)
        if match is None:
            return []
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def _number(variables: Mapping[str, str], name: str, least: int) -> int:
    text = variables[name]
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
        raise ValueError(f"{name} is {text!r}: the launcher must set it to a whole number, at least {least}")
    return int(text)
