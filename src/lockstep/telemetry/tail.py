"""Reading `metrics.jsonl` while another process writes it."""

import json
import os
from pathlib import Path

__all__ = ["MetricsTail"]


class MetricsTail:
    """Gives what was added since it last looked."""

    def __init__(self, path: Path) -> None:
        """`path` need not exist yet."""
        self._path = path
        self._file = 0
        self._offset = 0

    def read(self) -> tuple[list[dict[str, object]], bool]:
        """New objects, and whether these are all that there are: at first, and after the run has gone back to a checkpoint.

        A line that is not whole yet is left for the next time; one that is no object is left out.
        """
        try:
            file = self._path.open("rb")
        except OSError:
            return [], False
        with file:
            status = os.fstat(file.fileno())
            anew = status.st_ino != self._file or status.st_size < self._offset
            if anew:  # resuming writes the rows that are kept into a new file
                self._file, self._offset = status.st_ino, 0
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [row for line in whole.splitlines() if (row := _object(line)) is not None], anew


def _object(line: bytes) -> dict[str, object] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
