"""From a run's folder to running ranks, for `train` and `resume`."""

import os

from lockstep.run.folder import RunFolder

__all__ = ["start", "under_launcher"]


def under_launcher() -> bool:
    """Whether torchrun, or another launcher that sets its variables, started this process as one of several ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def start(folder: RunFolder, ranks: int, resume_from: int) -> int:
    """Carries the run on `ranks` processes of this host. One rank is this process itself."""
    if ranks == 1:
        from lockstep.cli.work import train_alone

        return train_alone(folder, resume_from)
    from lockstep.experiment import open_run
    from lockstep.runtime.launch import launch

    _, config = open_run(folder.path)
    return launch(["rank", str(folder.path), str(resume_from)], ranks, config.runtime.backend)
