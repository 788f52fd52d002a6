"""`lockstep track FOLDER TRACKER`: how rank 0 starts what feeds a tracker. Not for people."""

from collections.abc import Sequence
from pathlib import Path

from lockstep.telemetry.sidecar import SidecarContext

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Feeds it until training has ended."""
    context = SidecarContext()
    from lockstep.run.folder import RunFolder
    from lockstep.telemetry.trackers import track

    folder = Path(argv[0])
    track(RunFolder(folder), argv[1], folder.absolute().name, context)
    return 0
