"""`lockstep storer FOLDER`: the sidecar process of rank 0 that copies its run folder to object storage.

An internal command.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.processes.parent import die_with_parent
from lockstep.telemetry.sidecar import SidecarContext

if TYPE_CHECKING:
    from lockstep.store.mirror import Mirror

__all__ = ["main"]

_PERIOD = 1.0
"""Seconds between two searches for new checkpoints and changed files."""
_RETRY = 5.0
"""Seconds between two attempts if the storage can't be used."""


def main(argv: Sequence[str]) -> int:
    """Copy the run until training has ended and everything is copied. Return the exit code."""
    context = SidecarContext()
    die_with_parent(int(os.environ["LOCKSTEP_PARENT"]))
    from lockstep.experiment.execute import open_run
    from lockstep.store.mirror import Mirror
    from lockstep.store.remote import RemoteRun

    folder, config = open_run(Path(argv[0]))
    assert config.run.store is not None
    _copy(Mirror(folder, RemoteRun(config.run.store, folder.path.name)), context)
    return 0


def _copy(mirror: "Mirror", context: SidecarContext) -> None:
    from lockstep.store.remote import StoreFailed

    claimed, problem = False, ""
    while True:
        # read before the copy: once training has ended, nothing is added
        training_ended = context.training_ended.is_set()
        try:
            if not claimed:
                mirror.claim()
                claimed = True
            mirror.update(everything=training_ended)
        except StoreFailed as error:
            if training_ended:
                raise  # the last line of the log is the reason
            if not problem:
                context.print_line(f"run.store: {error}; trying again")
            problem = str(error)
            context.training_ended.wait(_RETRY)
        else:
            if training_ended:
                return
            if problem:
                context.print_line("run.store: the storage can be used again")
            problem = ""
            context.training_ended.wait(_PERIOD)
