"""Reader of `metrics.jsonl` that follows the file while another process writes it."""

import json
import os
from pathlib import Path

__all__ = ["MetricsTail"]


class MetricsTail:
    """Incremental reader: every `read` returns the rows that were added since the one before."""

    def __init__(self, path: Path) -> None:
        """Create a reader of `path`, which need not exist yet."""
        self._path = path
        self._file = 0
        self._offset = 0

    def read(self) -> tuple[list[dict[str, object]], bool]:
        """Return the new rows, and True if they begin at the start of the file.

        That is so at the first read, and after the run was resumed from an earlier checkpoint. An incomplete last line
        is returned by a later call, when it is complete. Lines that are not JSON objects are skipped.
        """
        try:
            file = self._path.open("rb")
        except OSError:
            return [], False
        with file:
            status = os.fstat(file.fileno())
            restarted = status.st_ino != self._file or status.st_size < self._offset
            if restarted:  # when a run is resumed, the rows up to the checkpoint are written to a new file
                self._file, self._offset = status.st_ino, 0
            file.seek(self._offset)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        return [row for line in complete.splitlines() if (row := _object(line)) is not None], restarted


def _object(line: bytes) -> dict[str, object] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
