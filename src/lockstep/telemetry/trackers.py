"""Weights & Biases and Trackio, in a process of their own (`companion.py`) that follows the run's metrics.jsonl and videos/.

What was handed over is kept beside the tracker's own files, in lockstep.json: a run that goes on, after whatever end, goes on in the same
run of the tracker, from the first iteration that it has not seen.
"""

import fcntl
import importlib.util
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol

from lockstep.run.folder import RunFolder, write_aside
from lockstep.telemetry.loggers import Logger, flat, scalars
from lockstep.telemetry.sidecar import Errand
from lockstep.telemetry.tail import MetricsTail

__all__ = ["TRACKERS", "Tracker", "check_trackers", "track"]

_PROJECT = "lockstep"
_EACH = 1.0
"""Seconds between looks at what is new."""
_ANSWER = 15.0
"""Seconds that a server has to answer at the start."""
_FILM = re.compile(r"iteration-(\d+)-(first|last)\.mp4")


class Tracker(Logger, Protocol):
    """A logger that keeps films too."""

    def show(self, film: Path, name: str, caption: str) -> None:
        """Keeps an .mp4 file under `name`."""


class WeightsAndBiases:
    """A run of W&B, with the id that it is given. WANDB_MODE, WANDB_PROJECT and so on are the user's, as is the API key."""

    def __init__(self, folder: RunFolder, name: str, own: "_Own", tell: Callable[[str], None]) -> None:
        """`name` is what W&B shows."""
        if not os.environ.get("WANDB_MODE", "offline"):
            del os.environ["WANDB_MODE"]  # set to nothing, which it takes for a wrong mode
        import wandb

        self._wandb: Any = wandb
        options = {
            "dir": str(folder.path),
            "id": own.identity,
            "resume": "allow",
            "name": name,
            "config": folder.tree(),
        }
        options["project"] = os.environ.get("WANDB_PROJECT", _PROJECT)
        mode = os.environ.get("WANDB_MODE")
        uploads = f"`wandb sync {folder.path}/wandb/offline-run-*` uploads it"
        if not mode and not wandb.login(prompt=False):
            tell(f"wandb: there is neither an API key nor WANDB_MODE, so it records offline; {uploads}")
            mode = "offline"
        try:
            self._run: Any = self._init(options, mode)
        except Exception as error:
            if mode == "offline":
                raise
            tell(f"wandb: {str(error).partition(chr(10))[0]}, so it records offline; {uploads}")
            self._run = self._init(options, "offline")

    def _init(self, options: Mapping[str, Any], mode: str | None) -> Any:
        # what it would measure of this process and its terminal says nothing of training
        settings = self._wandb.Settings(console="off", silent=True, x_disable_stats=True, init_timeout=_ANSWER)
        return self._wandb.init(**options, mode=mode, settings=settings)

    def write(self, metrics: Mapping[str, object]) -> None:
        """Adds a point to every curve."""
        self._run.log(scalars(metrics), step=metrics["env_steps"])

    def show(self, film: Path, name: str, caption: str) -> None:
        """See `Tracker.show`."""
        self._run.log({name: self._wandb.Video(str(film), caption=caption, format="mp4")})

    def flush(self) -> None:
        """Nothing: its own process writes."""

    def close(self) -> None:
        """Waits until it is on disk, or uploaded."""
        self._run.finish()


class Trackio:
    """A run of Trackio, in RUN/trackio unless TRACKIO_DIR says otherwise."""

    def __init__(self, folder: RunFolder, name: str, own: "_Own", tell: Callable[[str], None]) -> None:
        """`name` is what Trackio shows, and what it knows the run by."""
        os.environ.setdefault("TRACKIO_DIR", str(own.folder.absolute()))
        import trackio

        self._trackio: Any = trackio
        self._step = own.env_steps
        trackio.init(
            _PROJECT,
            name=name,
            resume="allow" if own.known else "never",
            config=flat(folder.tree()),
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def write(self, metrics: Mapping[str, object]) -> None:
        """Adds a point to every curve."""
        self._step = int(str(metrics["env_steps"]))
        self._trackio.log(scalars(metrics), step=self._step)

    def show(self, film: Path, name: str, caption: str) -> None:
        """See `Tracker.show`."""
        self._trackio.log({name: self._trackio.Video(str(film), caption=caption)}, step=self._step)

    def flush(self) -> None:
        """Nothing: a thread of its own writes, at once."""

    def close(self) -> None:
        """Waits until it is on disk, or uploaded."""
        self._trackio.finish()


TRACKERS: dict[str, Callable[[RunFolder, str, "_Own", Callable[[str], None]], Tracker]] = {
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
}
"""By the names that `run.loggers` takes; they are the packages' too."""


def check_trackers(loggers: tuple[str, ...]) -> None:
    """Raises ValueError if one of them is not installed."""
    for name in loggers:
        if name in TRACKERS and importlib.util.find_spec(name) is None:
            raise ValueError(f"run.loggers has {name!r}, which is not installed; pip install 'lockstep-rl[track]'")


def track(folder: RunFolder, kind: str, name: str, errand: Errand) -> None:
    """Hands over all that is new, again and again, until training has ended."""
    with closing(_Own(folder.path / kind)) as own:
        tracker = TRACKERS[kind](folder, name, own, errand.tell)
        follower = MetricsTail(folder.path / "metrics.jsonl")
        over = False
        while not over:
            own.keep()
            over = errand.over.wait(_EACH)
            for row in follower.read()[0]:
                steps = int(str(row["env_steps"]))
                if steps > own.env_steps:
                    tracker.write(row)
                    own.env_steps = steps
            for film in sorted((folder.path / "videos").glob("*.mp4")):
                found = _FILM.fullmatch(film.name)
                if found and film.name not in own.films:
                    tracker.show(film, f"videos/{found[2]}", f"iteration {int(found[1])}")
                    own.films.append(film.name)
            tracker.flush()
        tracker.close()
        own.keep()


class _Own:
    """What a tracker's folder says about it. Until it is closed, no other process has it."""

    def __init__(self, folder: Path) -> None:
        """Waits for the process of an earlier part of the run, which ends soon."""
        self.folder = folder
        self._path = folder / "lockstep.json"
        folder.mkdir(exist_ok=True)
        self._lock = os.open(folder, os.O_RDONLY)
        with suppress(OSError):  # a file system that knows no locks
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.known = self._path.exists()
        found = json.loads(self._path.read_text()) if self.known else {}
        self.identity: str = found.get("id") or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        self.env_steps: int = found.get("env_steps", -1)
        """Of the last iteration that was handed over."""
        self.films: list[str] = found.get("films", [])
        self._kept: bytes | None = None

    def keep(self) -> None:
        """Writes it, if it has changed."""
        content = json.dumps({"id": self.identity, "env_steps": self.env_steps, "films": self.films}).encode()
        if content != self._kept:
            write_aside(self._path, content)
            self._kept = content

    def close(self) -> None:
        """Lets another process have it."""
        os.close(self._lock)
