"""Which rank this process is: what launchers leave in the environment. Importing this does not import PyTorch.

| launcher | rank, size | among the ranks of its host |
| --- | --- | --- |
| torchrun, `fabric run` | RANK, WORLD_SIZE | LOCAL_RANK, LOCAL_WORLD_SIZE |
| Open MPI | OMPI_COMM_WORLD_RANK, …_SIZE | OMPI_COMM_WORLD_LOCAL_RANK, …_LOCAL_SIZE |
| MPICH, Intel MPI (Hydra) | PMI_RANK, PMI_SIZE | MPI_LOCALRANKID, MPI_LOCALNRANKS |
| Slurm's srun | SLURM_PROCID, SLURM_STEP_NUM_TASKS | SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE |
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RankInfo", "find_rank_info", "launcher_process"]


@dataclass(frozen=True)
class RankInfo:
    """Which rank this process is, of how many, and how it meets the others."""

    rank: int
    size: int
    local_rank: int | None = None
    """Its number among the ranks of its host; None: not known before they have met."""
    local_size: int | None = None
    """Number of ranks on its host; None: not known before they have met."""
    launcher: str = "lockstep"
    """What started it, as users call it."""
    memory: int | None = None
    """File descriptor of shared memory that our own launch passed on."""
    meeting: str = ""
    """Address of the meeting, as in `runtime.rendezvous`; empty: not chosen yet."""

    @property
    def on_one_host(self) -> bool:
        """Whether all ranks are known to be on one host."""
        return self.size == (self.local_size or 1)


@dataclass(frozen=True)
class _Launcher:
    """Variables that a launcher sets for every rank."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    even_alone: bool = False
    """Whether a rank that is the only one is under this launcher at all: a scheduler's interactive shell is one, too."""


_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", even_alone=True),
    _Launcher(
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Launcher("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # not SLURM_NTASKS, which a batch script has too, where no step has been started
    _Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


def find_rank_info(environ: Mapping[str, str] | None = None) -> RankInfo | None:
    """The place that a launcher gave this process, its meeting still open; None if no launcher started it.

    A launcher nearer to the process wins over the scheduler that it may run under. Raises ValueError, naming the variable, if
    what it says makes no sense.
    """
    variables = os.environ if environ is None else environ
    for launcher in _LAUNCHERS:
        if launcher.rank not in variables or launcher.size not in variables:
            continue
        size = _number(variables, launcher.size, 1)
        if size == 1 and not launcher.even_alone:
            continue
        rank = _number(variables, launcher.rank, 0)
        if rank >= size:
            raise ValueError(f"{launcher.rank} is {rank}: it must be below {launcher.size}, which is {size}")
        local_rank, local_size = _local(launcher, variables)
        if size == 1:
            local_rank, local_size = 0, 1
        return RankInfo(rank, size, local_rank, local_size, launcher.name)
    return None


def launcher_process(place: RankInfo) -> int:
    """The nearest ancestor that is not part of a rank itself, as a shell around it is: the same for all ranks of a host.

    0 where the system does not say.
    """
    variable = next((launcher.rank for launcher in _LAUNCHERS if launcher.name == place.launcher), "LOCKSTEP_RANK")
    process = os.getppid()
    with suppress(OSError, ValueError, IndexError):
        while process > 1 and _has(process, variable):
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        return process
    return 0


def _has(process: int, variable: str) -> bool:
    try:
        environ = Path(f"/proc/{process}/environ").read_bytes()
    except PermissionError:  # a scheduler's own process
        return False
    return any(entry.startswith(f"{variable}=".encode()) for entry in environ.split(b"\0"))


def _local(launcher: _Launcher, variables: Mapping[str, str]) -> tuple[int | None, int | None]:
    if launcher.local_rank not in variables:
        return None, None
    local_rank = _number(variables, launcher.local_rank, 0)
    if launcher.local_size == "SLURM_STEP_TASKS_PER_NODE":
        tasks = _tasks_per_node(variables.get(launcher.local_size, ""))
        node = _number(variables, "SLURM_NODEID", 0) if "SLURM_NODEID" in variables else 0
        return local_rank, tasks[node] if node < len(tasks) else None
    return local_rank, _number(variables, launcher.local_size, 1) if launcher.local_size in variables else None


def _tasks_per_node(text: str) -> list[int]:
    """Slurm's `2(x3),1` -> [2, 2, 2, 1]; empty if it is something else."""
    tasks: list[int] = []
    for group in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", group)
        if found is None:
            return []
        tasks += [int(found[1])] * int(found[2] or 1)
    return tasks


def _number(variables: Mapping[str, str], name: str, least: int) -> int:
    text = variables[name]
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
        raise ValueError(f"{name} is {text!r}: the launcher must set it to a whole number, at least {least}")
    return int(text)
