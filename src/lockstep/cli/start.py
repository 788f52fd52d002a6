"""From a run's folder to running ranks, for `train` and `resume`."""

import os

from lockstep.run.folder import RunFolder
from lockstep.run.stop import listen

__all__ = ["start", "under_launcher"]


def under_launcher() -> bool:
    """Whether torchrun, or another launcher that sets its variables, started this process as one of several ranks.

    Raises ValueError under a launcher whose ranks would not find each other.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return True
    for name in ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        if os.environ.get(name, "1") != "1":
            raise ValueError(
                f"{name} is {os.environ[name]}: ranks are started by --ranks or torchrun, which set RANK and WORLD_SIZE"
            )
    return False


def start(folder: RunFolder, ranks: int, resume_from: int) -> int:
    """Carries the run, which the caller has locked, on `ranks` processes of this host. One rank is this process itself."""
    if ranks == 1:
        listen()
        from lockstep.cli.work import train_alone

        return train_alone(folder, resume_from)
    from lockstep.experiment import open_run
    from lockstep.runtime.launch import launch

    _, config = open_run(folder.path)
    return launch(["rank", str(folder.path), str(resume_from)], ranks, config.runtime.backend)
