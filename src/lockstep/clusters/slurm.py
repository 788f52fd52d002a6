"""Submission of runs to Slurm, and the state of a job."""

import os
import re
import shutil
import subprocess
from collections import Counter

from lockstep.clusters.batch_script import array_script, batch_script, faults_file, write_array
from lockstep.clusters.job import Job, Submission, SweepJob, read_submission, write_submission
from lockstep.clusters.request import Request, reserved
from lockstep.files import make_folder, write_atomically
from lockstep.messages import counted
from lockstep.processes.exit_codes import DONE
from lockstep.run.folder import RunFolder, RunInUse

__all__ = ["check_not_submitted", "job_state", "submit", "submit_array"]

_TIMEOUT = 120
"""Seconds until a command of Slurm that does not end is killed. sbatch itself gives up after 10 to 60 seconds."""


def submit(request: Request) -> int:
    """Write the batch script into the run folder, submit it, print the id of the job, and return the exit code.

    Raises ValueError in one line if Slurm is missing or refuses the job, and RunInUse if an earlier job of this run has not ended.
    """
    with reserved(request) as job:
        path = job.folder.path
        _check_earlier(job.folder)
        faults_file(job).unlink(missing_ok=True)
        job_id = _submit(job, batch_script(job))
    print(f"submitted job {job_id} to Slurm: {path.name}, {counted(job.sizes[0], 'rank')}, in {path}")
    print(f"follow it with: lockstep watch {path}")
    print(f"its output: {job.files / 'slurm.log'}")
    return DONE


def submit_array(runs: SweepJob) -> str:
    """Submit the runs of a sweep as a job array, and return its id. Raises ValueError and RunInUse as `submit` does."""
    _check_earlier(runs.folder)
    make_folder(runs.files)
    write_array(runs)
    return _submit(runs, array_script(runs))


def check_not_submitted(folder: RunFolder) -> None:
    """Raise RunInUse if a job of Slurm has the run or sweep, and this process is not part of the job. If Slurm does not answer, do nothing."""
    earlier = read_submission(folder)
    own = (os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_ARRAY_JOB_ID"))
    if earlier is None or earlier.job_id in own or shutil.which("squeue") is None:
        return
    try:
        _check_earlier(folder)
    except RunInUse:
        raise
    except ValueError:
        return


def _check_earlier(folder: RunFolder) -> None:
    path, earlier = folder.path, read_submission(folder)
    if earlier is not None and earlier.cluster == "slurm" and (state := job_state(earlier.job_id)) is not None:
        raise RunInUse(
            f"{path} is in use: job {earlier.job_id} of Slurm trains it ({state}); scancel {earlier.job_id} ends it"
        )


def _submit(job: Job | SweepJob, text: str) -> str:
    script = job.files / "slurm.sh"
    write_atomically(script, text.encode())
    _run("sbatch", "--test-only", str(script))  # sbatch itself accepts jobs that can never start
    job_id = _run("sbatch", "--parsable", str(script)).strip().partition(";")[0]
    try:
        write_submission(job.folder, Submission("slurm", job_id))
    except BaseException:
        _run("scancel", job_id)  # otherwise it would start in a folder that is removed
        raise
    return job_id


def job_state(job_id: str) -> str | None:
    """Return the state of a job, such as `PENDING (Resources)` or `RUNNING`; of an array, such as `2 PENDING, 4 RUNNING`. None: it has ended.

    Raises ValueError if Slurm does not answer.
    """
    if not re.fullmatch(r"\d+", job_id):
        return None
    try:
        output = _run("squeue", "--noheader", "--array", f"--jobs={job_id}", "--format=%T (%r)")
    except ValueError as error:
        if "Invalid job id" in str(error):  # it has ended, and Slurm has forgotten it
            return None
        raise
    states = output.replace(" (None)", "").split("\n")[:-1]
    if len(states) < 2:
        return "".join(states).strip() or None
    counts = Counter(state.partition(" ")[0] for state in states)
    return ", ".join(f"{counts[name]} {name}" for name in sorted(counts))


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
