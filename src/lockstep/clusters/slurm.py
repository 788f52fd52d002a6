"""Submission of a run to Slurm, and the state of its job."""

import re
import subprocess

from lockstep.clusters.batch_script import batch_script, faults_file
from lockstep.clusters.job import Job, Submission, read_submission, write_submission
from lockstep.clusters.request import Request, reserved
from lockstep.files import write_atomically
from lockstep.processes.exit_codes import DONE
from lockstep.run.folder import RunInUse

__all__ = ["job_state", "submit"]

_TIMEOUT = 120
"""Seconds until a command of Slurm that does not end is killed. sbatch itself gives up after 10 to 60 seconds."""


def submit(request: Request) -> int:
    """Write the batch script into the run folder, submit it, print the id of the job, and return the exit code.

    Raises ValueError in one line if Slurm is missing or refuses the job, and RunInUse if an earlier job of this run has not ended.
    """
    with reserved(request) as job:
        _submit(job)
    return DONE


def _submit(job: Job) -> None:
    path, earlier = job.folder.path, read_submission(job.folder)
    if earlier is not None and earlier.cluster == "slurm" and (state := job_state(earlier.job_id)) is not None:
        raise RunInUse(
            f"{path} is in use: job {earlier.job_id} of Slurm trains it ({state}); scancel {earlier.job_id} ends it"
        )
    script = job.files / "slurm.sh"
    write_atomically(script, batch_script(job).encode())
    faults_file(job).unlink(missing_ok=True)
    _run("sbatch", "--test-only", str(script))  # sbatch itself accepts jobs that can never start
    job_id = _run("sbatch", "--parsable", str(script)).strip().partition(";")[0]
    write_submission(job.folder, Submission("slurm", job_id))
    count = f"{job.sizes[0]} rank{'s' * (job.sizes[0] > 1)}"
    print(f"submitted job {job_id} to Slurm: {path.name}, {count}, in {path}")
    print(f"follow it with: lockstep watch {path}")
    print(f"its output: {job.files / 'slurm.log'}")


def job_state(job_id: str) -> str | None:
    """Return the state of a job, such as `PENDING (Resources)` or `RUNNING`; None if it has ended.

    Raises ValueError if Slurm does not answer.
    """
    if not re.fullmatch(r"\d+", job_id):
        return None
    try:
        output = _run("squeue", "--noheader", f"--jobs={job_id}", "--format=%T (%r)")
    except ValueError as error:
        if "Invalid job id" in str(error):  # it has ended, and Slurm has forgotten it
            return None
        raise
    return output.strip().replace(" (None)", "") or None


def _run(program: str, *arguments: str) -> str:
    """Run a command of Slurm and return its output. Raises ValueError with its first error message."""
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=False
        )
    except FileNotFoundError:
        raise ValueError(
            f"--on is 'slurm': {program} is not installed here; run the command on a host of the cluster"
        ) from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"--on is 'slurm': {program} did not end within {_TIMEOUT} seconds") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        message = re.sub(rf"^({program}|slurm_\w+)?:?\s*(error|fatal)?:?\s*", "", lines[0]).strip()
        raise ValueError(f"--on is 'slurm': {program} failed: {message}")
    return done.stdout
