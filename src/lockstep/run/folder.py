"""The folder of one run: what is in it and how it is read and written."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["RunFolder", "write_aside"]

_TRIES = 3
_PAUSE = 0.05
"""Seconds between two of them, for the lock."""


def write_aside(path: Path, content: bytes) -> None:
    """Writes a whole file or nothing: beside its place, then renamed into it."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


class RunFolder:
    """`config.json`, `environment.json`, `metrics.jsonl`, `starts.jsonl`, `checkpoints/`, `tb/`, `wandb/`, `trackio/`, `evaluation.json`,
    `videos/`, `plots/`, `report.html`, `policy-*.onnx`; `logs/`, what companions said that have failed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path, config: Mapping[str, object], environment: Mapping[str, object]) -> "RunFolder":
        """A new folder. Raises FileExistsError if there is something at `path`, also if two processes try at once."""
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise
        except OSError as error:
            raise ValueError(f"run.folder: {path} can't be made ({error.strerror}); choose another --out") from None
        folder = cls(path)
        write_aside(path / "environment.json", _json(environment))
        write_aside(path / "config.json", _json(config))
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run. Raises ValueError if there is none at `path`."""
        if not (path / "config.json").is_file():
            raise ValueError(f"{path} is not a run: it holds no config.json")
        return cls(path)

    def tree(self) -> dict[str, object]:
        """The config as it was resolved. Raises ValueError if the file is broken."""
        return _object(self.path / "config.json")

    def environment(self) -> dict[str, object]:
        """What it was made with; empty where that was not noted. Raises ValueError if the file is broken."""
        path = self.path / "environment.json"
        return _object(path) if path.exists() else {}

    def rewrite(self, config: Mapping[str, object]) -> None:
        """Replaces the config, for a run that is resumed with a larger budget."""
        write_aside(self.path / "config.json", _json(config))

    def metrics(self) -> list[dict[str, object]]:
        """One object per iteration. A last line that was cut off by a kill is left out."""
        path = self.path / "metrics.jsonl"
        rows: list[dict[str, object]] = []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def cut_metrics(self, iteration: int) -> None:
        """Forgets what came after `iteration`, which will be done again."""
        kept = [row for row in self.metrics() if int(str(row["iteration"])) <= iteration]
        write_aside(self.path / "metrics.jsonl", "".join(f"{json.dumps(row)}\n" for row in kept).encode())

    def lock(self) -> None:
        """Keeps other processes from writing to this run until `unlock`, or until this one ends, however it ends.

        Raises ValueError if one is doing so now.
        """
        for tries in reversed(range(_TRIES)):
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                if not tries:
                    raise ValueError(f"{self.path} is in use: another process is training it") from None
                time.sleep(_PAUSE)  # somebody may just be asking `in_use`
            except OSError:  # a file system that knows no locks
                os.close(descriptor)
                return
            else:
                self._lock = descriptor
                return

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock. Raises ValueError if another process holds it."""
        self.lock()
        try:
            yield
        finally:
            self.unlock()

    def in_use(self) -> bool | None:
        """Whether a process holds the lock now; None on a file system that knows no locks."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        else:
            return False
        finally:
            os.close(descriptor)

    def unlock(self) -> None:
        """Lets other processes write again."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def checkpoint(self, iteration: int) -> Path:
        """Where the checkpoint of `iteration` is or would be."""
        return self.path / "checkpoints" / f"{iteration:08d}"

    def checkpoints(self) -> list[int]:
        """Iterations that have a checkpoint, ascending."""
        folders = (self.path / "checkpoints").glob("[0-9]*")
        return sorted(int(folder.name) for folder in folders if folder.name.isdigit())


def _json(content: Mapping[str, object]) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()


def _object(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} can't be read: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no object")
    return content
