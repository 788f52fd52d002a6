"""`lockstep track FOLDER TRACKER`: the sidecar process of rank 0 that sends metrics to a tracker.

An internal command.
"""

from collections.abc import Sequence
from pathlib import Path

from lockstep.telemetry.sidecar import SidecarContext

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Send metrics to the tracker until training has ended. Return the exit code."""
    context = SidecarContext()
    from lockstep.run.folder import RunFolder
    from lockstep.telemetry.trackers import track

    folder = Path(argv[0])
    track(RunFolder(folder), argv[1], folder.absolute().name, context)
    return 0
