"""Runs as jobs of a cluster, and the record of a submission in the folder of the run or sweep."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.files import read_file, write_atomically
from lockstep.run.folder import JOB_FOLDER, RunFolder

__all__ = ["Job", "Submission", "SweepJob", "check_options", "read_submission", "write_submission"]

_RECORD = "job.json"


@dataclass(frozen=True)
class Job:
    """A run that is to be trained on a cluster."""

    folder: RunFolder
    """Folder of the run, which this process has locked. It has no config yet if the run is new."""
    arguments: Sequence[str]
    """Arguments of `lockstep` with which every rank runs. They start the run or resume it from its newest checkpoint."""
    sizes: Sequence[int]
    """Numbers of ranks that fit the plan, largest first."""
    restarts: int
    """Number of restarts after faults within an hour."""
    options: Mapping[str, str]
    """Options of the cluster, from `--job`."""

    @property
    def files(self) -> Path:
        """Folder for the files of the job, inside the run folder."""
        return self.folder.path.absolute() / JOB_FOLDER


@dataclass(frozen=True)
class SweepJob:
    """The runs of a sweep that are to be trained on a cluster."""

    folder: RunFolder
    """Folder of the sweep, which this process has locked."""
    arguments: Mapping[str, Sequence[str]]
    """Arguments of `lockstep` with which each rank of a run runs, by the run's name. They start the run or resume it from its newest checkpoint."""
    ranks: int
    """Number of ranks of every run."""
    at_once: int | None
    """Number of runs at a time; None: as many as there is room for."""
    restarts: int
    """Number of restarts of a run after faults within an hour."""
    options: Mapping[str, str]
    """Options of the cluster, from `--job`."""

    @property
    def files(self) -> Path:
        """Folder for the files of the job, inside the folder of the sweep."""
        return self.folder.path.absolute() / JOB_FOLDER

    @property
    def logs(self) -> Path:
        """Folder of the output of the runs."""
        return self.folder.path.absolute() / "logs"


@dataclass(frozen=True)
class Submission:
    """The newest submission of a run or a sweep."""

    cluster: str
    """Value of `--on`."""
    job_id: str
    """Id of the job in the cluster."""


def check_options(options: Mapping[str, str], cluster: str, known: Sequence[str]) -> None:
    """Raise ValueError if `--job` has an option that `--on CLUSTER` does not have."""
    for name in options:
        if name not in known:
            raise ValueError(f"--job {name}: --on {cluster} has no such option; it has {', '.join(known)}")


def write_submission(folder: RunFolder, submission: Submission) -> None:
    """Record the submission in the folder of the run or sweep."""
    record = {"on": submission.cluster, "id": submission.job_id}
    write_atomically(folder.path / JOB_FOLDER / _RECORD, f"{json.dumps(record)}\n".encode())


def read_submission(folder: RunFolder) -> Submission | None:
    """Return the newest submission; None if there is none, or its record is broken."""
    with suppress(OSError, ValueError, RecursionError):
        record = json.loads(read_file(folder.path / JOB_FOLDER / _RECORD))
        if isinstance(record, dict) and isinstance(record.get("on"), str) and isinstance(record.get("id"), str):
            return Submission(record["on"], record["id"])
    return None
