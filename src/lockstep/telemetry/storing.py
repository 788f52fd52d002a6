"""Copying a run to object storage during training: a sidecar process (`cli/storer.py`) follows the run folder."""

import time
from collections.abc import Callable
from contextlib import suppress

from lockstep.messages import print_warning
from lockstep.run.folder import RunFolder
from lockstep.store.mirror import newest_stored
from lockstep.store.remote import StoreFailed
from lockstep.telemetry.sidecar import Sidecar, SidecarFailed

__all__ = ["StoreSidecar"]

_NICE = 5
"""Niceness: uploads take little CPU time, which they must also get on a busy machine."""
_COMPLETE_TIMEOUT, _STOP_TIMEOUT = 3600.0, 15.0
"""Time limits in seconds for the remaining uploads: after complete training, and after a stop."""
_RESTART_AFTER = 30.0
"""Seconds between two starts of a sidecar that fails."""


class StoreSidecar(Sidecar):
    """Sidecar that copies a run to the address `run.store`. It is started again if it fails."""

    def __init__(self, folder: RunFolder, address: str, is_complete: Callable[[], bool]) -> None:
        """Start the sidecar of the run in `folder`. `is_complete` is called when training ends. Raises StoreFailed if it can't be started."""
        self._run_folder, self._address, self._is_complete = folder, address, is_complete
        self._started = time.monotonic()

        def timeout() -> float:
            return _COMPLETE_TIMEOUT if is_complete() else _STOP_TIMEOUT

        try:
            super().__init__("uploads", folder.path, ["storer", str(folder.path)], timeout, _NICE)
        except OSError as error:
            raise StoreFailed(f"run.store: the process that copies the run can't be started: {error}") from None

    def flush(self) -> None:
        """Print the lines that the sidecar has sent, and start it again if it has failed."""
        self._report_progress()
        if self._process.poll() is None or time.monotonic() < self._started + _RESTART_AFTER:
            return
        print_warning(f"run.store: {self._reason()}; trying again")
        self._started = time.monotonic()
        with suppress(OSError):  # for example, no memory for a process now: the process is found dead again later
            self._restart()

    def close(self) -> None:
        """Wait until the newest checkpoint is in the storage. Raises StoreFailed if training is complete and the checkpoint is not stored.

        Prints a warning if training was stopped.
        """
        problem = ""
        try:
            if self._process.poll() is not None:
                self._restart()
            super().close()
        except (SidecarFailed, OSError) as error:
            problem = f" ({error})"
        newest, stored = max(self._run_folder.checkpoints(), default=0), newest_stored(self._run_folder)
        if not problem and stored >= newest:
            return
        line = f"run.store: the checkpoint of iteration {newest} was not stored in {self._address}, only that of {stored}{problem}"
        if self._is_complete():
            raise StoreFailed(f"{line}; `{self._run_folder.resume_command()}` stores the rest")
        print_warning(line)
