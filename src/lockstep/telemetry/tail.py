"""Reader of `metrics.jsonl` that follows the file while another process writes it."""

import os
from pathlib import Path

from lockstep.files import METRICS_LIMIT, open_regular
from lockstep.run.rows import parse_row

__all__ = ["MetricsTail"]


class MetricsTail:
    """Incremental reader: every `read` returns the rows that were added since the one before."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        """Create a reader of `path`, which need not exist yet. One `read` takes at most `limit` bytes from the file."""
        self._path = path
        self._limit = limit
        self._file = 0
        self._offset = 0
        self.more = False
        """True if the last `read` ended at the limit: the file may hold more."""
        self.skipped = 0
        """Number of skipped lines since the start of the file."""

    def read(self) -> tuple[list[dict[str, object]], bool]:
        """Return the new rows, and True if they begin at the start of the file.

        That is so at the first read, and after the run was resumed from an earlier checkpoint. An incomplete last line
        is returned by a later call, when it is complete. Broken lines are skipped.
        """
        try:
            file = open_regular(self._path, METRICS_LIMIT)
        except OSError:
            return [], False
        with file:
            status = os.fstat(file.fileno())
            restarted = status.st_ino != self._file or status.st_size < self._offset
            if restarted:  # when a run is resumed, the rows up to the checkpoint are written to a new file
                self._file, self._offset, self.skipped = status.st_ino, 0, 0
            file.seek(self._offset)
            block = file.read(-1 if self._limit is None else self._limit)
        self.more = len(block) == self._limit
        complete, newline, rest = block.rpartition(b"\n")
        if self.more and not newline:  # a line longer than the limit: skip it piece by piece
            complete = rest
        self._offset += len(complete) + len(newline)
        lines = complete.split(b"\n") if complete else []
        rows = [row for line in lines if (row := parse_row(line)) is not None]
        self.skipped += len(lines) - len(rows)
        return rows, restarted
