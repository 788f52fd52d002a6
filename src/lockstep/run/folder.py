"""The folder of one run: its files, and how they are read and written."""

import bisect
import itertools
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from lockstep.files import METRICS_LIMIT, open_regular, read_file, read_lines, sync_folder, write_atomically
from lockstep.run.lock import is_locked, lock_folder
from lockstep.run.rows import parse_row

__all__ = ["DRIVEN", "JOB_FOLDER", "FolderLost", "RunFolder", "RunInUse"]

JOB_FOLDER = "job"
"""Name of the folder, in a run folder, for the files of a job that was submitted to a cluster. It may exist before the run has a config."""
DRIVEN = "LOCKSTEP_DRIVEN"
"""Environment variable of ranks whose run another process drives, see `RunFolder.driven`."""
_PRUNED = "pruned.json"
_BLOCK = 2**20
"""Bytes per copy operation."""


class FolderLost(RuntimeError):
    """The run folder was removed or renamed, or another one has its name."""

    def __init__(self, path: object) -> None:
        super().__init__(f"{path} was removed, renamed or replaced while the run was being trained")


class RunInUse(ValueError):
    """Another process trains the run."""


class RunFolder:
    """A run folder.

    It has `config.json`, `environment.json`, `metrics.jsonl`, `starts.jsonl`, `evaluations.jsonl`, `best.json`,
    `checkpoints/`, `tb/`, `wandb/`, `trackio/`, `evaluation.json`, `evaluation-sampled.json`, `videos/`, `plots/`,
    `report.html`, `policy-*.onnx`, `non-finite-*.safetensors`, `logs/` with the output of sidecar processes that failed, `job/` with the files
    of a job that was submitted to a cluster, and `pruned.json` if a search ended the run early.
    """

    def __init__(self, path: Path) -> None:
        self.path = self._shown = path
        self._lock: int | None = None
        self._held: int | None = None

    def __str__(self) -> str:
        """Return the path as it was given, for messages."""
        return str(self._shown)

    def make_absolute(self) -> None:
        """Make `path` absolute, before code of the user runs: an environment or a hook may change the working directory."""
        self.path = self.path.absolute()

    @classmethod
    def create(cls, path: Path, config: Mapping[str, object], environment: Mapping[str, object]) -> "RunFolder":
        """Create a run folder with its config and environment.

        Raises FileExistsError if `path` exists, also if two processes create it at once, and ValueError if it can't be
        created.
        """
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise
        except OSError as error:
            raise ValueError(f"run.folder: {path} can't be made ({error.strerror}); choose another --out") from None
        folder = cls(path)
        folder._write_new(config, environment)
        return folder

    @classmethod
    def open_or_create(
        cls, path: Path, config: Mapping[str, object], environment: Mapping[str, object]
    ) -> tuple["RunFolder", bool]:
        """Open and lock the run at `path`, or create it if there is none. Return it, and True if it was created.

        The folder is locked before it is read or written, so of two processes one creates the run. A folder that a killed process has left
        without a config is used again. Raises RunInUse, and ValueError if `path` can't be created or holds something else.
        """
        folder = cls.reserve(path)
        if folder.has_config():
            return folder, False
        folder._write_new(config, environment)
        return folder, True

    @classmethod
    def reserve(cls, path: Path, exist_ok: bool = True) -> "RunFolder":
        """Lock the folder of the run at `path`, or of one that will be created there. Create the folder if there is none.

        Raises RunInUse, FileExistsError if `path` exists and `exist_ok` is False, and ValueError if `path` can't be created or holds
        something else than a run or its remains.
        """
        try:
            path.mkdir(parents=True, exist_ok=exist_ok)
        except OSError as error:
            if isinstance(error, FileExistsError) and not exist_ok:
                raise
            raise ValueError(f"run.folder: {path} can't be made ({error.strerror}); choose another --out") from None
        folder = cls(path)
        folder.lock()
        if not folder.has_config() and not folder.has_only_remains():
            folder.unlock()
            raise ValueError(
                f"run.name: {path} exists and is not a run: it holds no config.json; choose another --name"
            )
        return folder

    def has_config(self) -> bool:
        """Return True if the run has been created: its folder has a config."""
        return (self.path / "config.json").is_file()

    def has_only_remains(self) -> bool:
        """Return True if the folder holds only a job that has not created the run yet, or files of a process that was killed while it created the run."""
        names = ("environment.json", JOB_FOLDER)
        return all(file.name in names or file.suffix == ".partial" for file in self.path.iterdir())

    def _write_new(self, config: Mapping[str, object], environment: Mapping[str, object]) -> None:
        sync_folder(self.path.parent)
        write_atomically(self.path / "environment.json", _json(environment))
        write_atomically(self.path / "config.json", _json(config))

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open an existing run. Raises ValueError if there is none at `path`."""
        if not (path / "config.json").is_file():
            raise ValueError(f"{path} is not a run: it holds no config.json")
        return cls(path)

    def tree(self) -> dict[str, object]:
        """Return the resolved config as a tree. Raises ValueError if the file is broken."""
        return _object(self.path / "config.json")

    def environment(self) -> dict[str, object]:
        """Return the recorded machine and versions, empty if there is no record. Raises ValueError if the file is broken."""
        path = self.path / "environment.json"
        return _object(path) if path.exists() else {}

    def rewrite(self, config: Mapping[str, object]) -> None:
        """Replace the config, for a run that is resumed with a larger budget."""
        write_atomically(self.path / "config.json", _json(config))

    def metrics(self) -> list[dict[str, object]]:
        """Return the metrics of every iteration, without a truncated last line, which a kill may leave.

        Raises ValueError for another broken line.
        """
        rows, broken = self._read_rows("metrics.jsonl")
        if broken is not None:
            raise ValueError(
                f"{self.path / 'metrics.jsonl'} can't be read: line {broken} is not an object with an iteration, as lockstep writes them"
            )
        return rows

    def readable_metrics(self) -> list[dict[str, object]]:
        """Return the metrics without broken lines, for a run that continues after a crash of its host."""
        return self._read_rows("metrics.jsonl")[0]

    def last_metrics(self) -> dict[str, object]:
        """Return the metrics of the last iteration, reading only the end of the file; empty if there is no complete line."""
        try:
            with open_regular(self.path / "metrics.jsonl", METRICS_LIMIT) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _BLOCK))
                lines = file.read(_BLOCK).split(b"\n")
        except OSError:
            return {}
        return next((row for line in reversed(lines) if (row := parse_row(line)) is not None), {})

    def resume_command(self, *options: str) -> str:
        """Return the command that resumes this run, with `options`.

        It names the modules of `env.module` and `run.hooks` and the address of `run.store`, which a run folder must not use by itself.
        """
        tree = self.tree()
        command = ["lockstep", "resume", str(self)]
        for name, field in (("env", "module"), ("run", "hooks"), ("run", "store")):
            section = tree.get(name)
            if isinstance(section, dict) and section.get(field):
                command += [f"--{name}.{field}", str(section[field])]
        return shlex.join([*command, *options])

    def mark_pruned(self, why: str) -> None:
        """Record that a search ended the run early, and why."""
        write_atomically(self.path / _PRUNED, _json({"why": why}))

    def unmark_pruned(self) -> None:
        """Remove the record of `mark_pruned`, if there is one."""
        (self.path / _PRUNED).unlink(missing_ok=True)

    def why_pruned(self) -> str | None:
        """Return why a search ended the run early; None if none did."""
        try:
            return str(_object(self.path / _PRUNED).get("why", ""))
        except ValueError:
            return None

    def evaluations(self) -> list[dict[str, object]]:
        """Return the rows of `evaluations.jsonl` without broken lines: the evaluations during training, by iteration."""
        return self._read_rows("evaluations.jsonl")[0]

    def _read_rows(self, name: str) -> tuple[list[dict[str, object]], int | None]:
        """Return the rows of a file without its broken lines, and the number of the first broken line."""
        path = self.path / name
        rows: list[dict[str, object]] = []
        broken = None
        try:
            for number, line in enumerate(read_lines(path), 1):
                if (row := parse_row(line)) is not None:
                    rows.append(row)
                elif broken is None and line.endswith(b"\n"):
                    broken = number
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ValueError(f"{path} can't be read ({error.strerror})") from None
        return rows, broken

    def truncate_metrics(self, iteration: int) -> None:
        """Remove the metrics of later iterations, as `truncate_rows` does."""
        self.truncate_rows("metrics.jsonl", iteration)

    def truncate_rows(self, name: str, iteration: int) -> None:
        """Remove the lines of iterations after `iteration`, which the run will repeat, from the file `name`.

        Leave the file unchanged if it has no such lines.
        """
        path = self.path / name
        if not path.exists():
            return
        with open_regular(path, METRICS_LIMIT) as file:
            size = os.fstat(file.fileno()).st_size
            # Iterations ascend, so a few lines are read, however long the file is.
            found = bisect.bisect_right(range(size), iteration, key=lambda offset: _iteration_after(file, offset))
            end = 0
            if found:  # the last line to keep begins one byte before
                file.seek(found - 1)
                file.readline()
                end = file.tell()
            file.seek(max(end - 1, 0))
            cut_off = end > 0 and file.read(1) != b"\n"
            if end < size or cut_off:
                # Write a new file: it shows `MetricsTail` that the run was resumed from an earlier iteration.
                write_atomically(path, itertools.chain(_blocks(file, end), [b"\n"] * cut_off))

    def lock(self) -> None:
        """Lock the run for this process until `unlock` or the end of the process.

        Do nothing on a file system without locks. Raises RunInUse if another process holds the lock, or drives the run and has not started
        this process.
        """
        try:
            self._lock = lock_folder(self.path)
        except BlockingIOError:
            raise RunInUse(f"{self} is in use: another process is training it") from None
        if DRIVEN not in os.environ and self._is_driven():
            self.unlock()
            raise RunInUse(f"{self} is in use: another process will start its ranks again")

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Mark the run as in use while this process starts its ranks, also between two starts. Raises RunInUse if another process does so.

        The ranks need the environment variable `DRIVEN`.
        """
        try:
            descriptor = lock_folder(self.path / JOB_FOLDER)
        except BlockingIOError:
            raise RunInUse(f"{self} is in use: another process will start its ranks again") from None
        try:
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _is_driven(self) -> bool:
        with suppress(OSError):  # most runs have no such folder
            return bool(is_locked(self.path / JOB_FOLDER))
        return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run inside the `with` block. Raises RunInUse if another process holds the lock."""
        self.lock()
        try:
            yield
        finally:
            self.unlock()

    def in_use(self) -> bool | None:
        """Return True if a process trains or drives the run; None on a file system without locks."""
        return self._is_driven() or is_locked(self.path)

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def hold(self) -> None:
        """Open the directory, so that a later removal or replacement is detected, until `release`. Raises FolderLost if there is none."""
        try:
            self._held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            raise FolderLost(self._shown) from None

    def release(self) -> None:
        """Close the directory that `hold` has opened."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def check_present(self) -> None:
        """Raise FolderLost if the path does not lead to the folder of `hold` any more, or to none."""
        try:
            status = self.path.stat()
        except OSError:
            raise FolderLost(self._shown) from None
        if self._held is not None and not os.path.samestat(status, os.fstat(self._held)):
            raise FolderLost(self._shown)

    def checkpoint(self, iteration: int) -> Path:
        """Return the path of the checkpoint of an iteration, which need not exist."""
        return self.path / "checkpoints" / f"{iteration:08d}"

    def training_ended(self, iteration: int) -> bool:
        """Return True if training was complete with a checkpoint before its budget was used up, by `run.stop_at_return` or a hook."""
        return self._has_flag(iteration, "complete")

    def ended_by_hook(self, iteration: int) -> bool:
        """Return True if a hook had ended training when the checkpoint was written."""
        return self._has_flag(iteration, "hook_stops")

    def _has_flag(self, iteration: int, name: str) -> bool:
        try:
            state = _object(self.checkpoint(iteration) / "state.json")
        except ValueError:
            return False
        return state.get(name) is True

    def checkpoints(self) -> list[int]:
        """Return the iterations that have a checkpoint, ascending. Raises OSError if their folder can't be read."""
        folder = self.path / "checkpoints"
        # not glob, which takes a folder that it may not read for an empty one
        paths = folder.iterdir() if folder.exists() else ()
        return sorted(int(path.name) for path in paths if path.name.isdecimal())


def _iteration_after(file: BinaryIO, offset: int) -> int:
    """Return the iteration of the first row that begins at or after `offset`; `sys.maxsize` if there is none. Broken lines are skipped."""
    file.seek(max(offset - 1, 0))
    if offset:
        file.readline(_BLOCK)
    while line := file.readline(_BLOCK):
        if (row := parse_row(line)) is not None:
            return int(str(row["iteration"]))
    return sys.maxsize


def _blocks(file: BinaryIO, end: int) -> Iterator[bytes]:
    """Iterate over the first `end` bytes of a file, in blocks."""
    file.seek(0)
    while block := file.read(min(end - file.tell(), _BLOCK)):
        yield block


def _json(content: Mapping[str, object]) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()


def _object(path: Path) -> dict[str, object]:
    try:
        content = json.loads(read_file(path))
    except OSError as error:
        raise ValueError(f"{path} can't be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} can't be read: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no object")
    return content
