"""Runs that were submitted to a cluster and have not begun."""

import time
from pathlib import Path

from lockstep.clusters.job import read_submission
from lockstep.run.folder import JOB_FOLDER, RunFolder
from lockstep.run.settings import RunConfig

__all__ = ["wait_for_job"]

_PERIOD = 2.0
"""Seconds between two requests for the state of the job."""


def wait_for_job(text: str, once: bool) -> bool:
    """Wait until the job of a run has created it, print the state of the job meanwhile, and return True.

    Return True at once if the run is not in a queue. With `once`, return False instead of waiting. Raises ValueError if the
    job ends before it creates the run.
    """
    candidates = (Path(text), Path(RunConfig.folder) / text)
    folder = next((RunFolder(candidate) for candidate in candidates if (candidate / JOB_FOLDER).is_dir()), None)
    submission = None if folder is None else read_submission(folder)
    if folder is None or submission is None:
        return True
    from lockstep.clusters.slurm import job_state

    shown = None
    while not folder.has_config():
        state = job_state(submission.job_id)
        if state is None and not folder.has_config():
            log = folder.path / JOB_FOLDER / "slurm.log"
            raise ValueError(f"{folder}: job {submission.job_id} of Slurm ended before the run began; see {log}")
        if state != shown:
            print(f"job {submission.job_id} of Slurm: {state}", flush=True)
            shown = state
        if once:
            return False
        time.sleep(_PERIOD)
    return True
