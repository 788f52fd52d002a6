"""Trackers: Weights & Biases and Trackio. Each runs in a sidecar process (`sidecar.py`), which follows metrics.jsonl and videos/ of the run.

The progress of the upload is stored in lockstep.json, in the folder of the tracker. So a resumed run continues the same run of the tracker,
from the first iteration that has not been passed to the tracker's client. If the sidecar is killed, iterations since the last store are sent
again, and those that the client had not written yet are missing.
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

from lockstep.files import make_folder, read_file, write_atomically
from lockstep.run.evaluations import EVALUATIONS
from lockstep.run.folder import RunFolder
from lockstep.telemetry.loggers import Logger, evaluation_scalars, flatten_config, scalars
from lockstep.telemetry.sidecar import SidecarContext
from lockstep.telemetry.tail import MetricsTail

__all__ = ["TRACKERS", "Tracker", "check_trackers", "track"]

_PROJECT = "lockstep"
_POLL_INTERVAL = 1.0
"""Seconds between two checks for new metrics and videos."""
_INIT_TIMEOUT = 15.0
"""Seconds that the W&B server has to answer at the start."""
_VIDEO_NAME = re.compile(r"iteration-(\d+)-(first|last)\.mp4")


class Tracker(Logger, Protocol):
    """Logger that also receives videos."""

    def log_video(self, video: Path, name: str, caption: str, env_steps: int) -> None:
        """Log an .mp4 file under `name`, at the environment steps of its iteration."""


class WeightsAndBiases:
    """Run of W&B with the id in the tracker state. The user chooses WANDB_MODE, WANDB_PROJECT and so on, and provides the API key."""

    def __init__(self, folder: RunFolder, name: str, state: "_TrackerState", print_line: Callable[[str], None]) -> None:
        """Start the run, or continue it if W&B knows the id. `name` is the display name."""
        if not os.environ.get("WANDB_MODE", "offline"):
            del os.environ["WANDB_MODE"]  # W&B rejects the empty string as an unknown mode
        import wandb

        self._wandb: Any = wandb
        self._late_groups: set[str] = set()
        options = {
            "dir": str(folder.path),
            "id": state.identity,
            "resume": "allow",
            "name": name,
            "config": folder.tree(),
        }
        options["project"] = os.environ.get("WANDB_PROJECT", _PROJECT)
        mode = os.environ.get("WANDB_MODE")
        upload = f"upload later with `wandb sync {folder}/wandb/offline-run-*`"
        if not mode and not wandb.login(prompt=False):
            print_line(f"wandb: no API key found and WANDB_MODE is not set: recording offline; {upload}")
            mode = "offline"
        try:
            self._run: Any = self._init(options, mode)
        except Exception as error:
            if mode == "offline":
                raise
            print_line(f"wandb: {str(error).partition(chr(10))[0]}: recording offline; {upload}")
            self._run = self._init(options, "offline")

    def _init(self, options: Mapping[str, Any], mode: str | None) -> Any:
        # no system metrics and no console output: those of this sidecar process say nothing about training
        settings = self._wandb.Settings(console="off", silent=True, x_disable_stats=True, init_timeout=_INIT_TIMEOUT)
        return self._wandb.init(**options, mode=mode, settings=settings)

    def write(self, metrics: Mapping[str, object]) -> None:
        """Add one point to every curve."""
        self._run.log(scalars(metrics), step=metrics["env_steps"])

    def write_evaluation(self, row: Mapping[str, object]) -> None:
        """Add one point to every curve of evaluation/."""
        self._log_late("evaluation", evaluation_scalars(row), row["env_steps"])

    def _log_late(self, group: str, values: Mapping[str, Any], env_steps: object) -> None:
        """Log values of earlier steps, with a step metric of their group: W&B's own step can't decrease."""
        steps = f"{group}/env_steps"
        if group not in self._late_groups:
            self._run.define_metric(steps, hidden=True)
            self._run.define_metric(f"{group}/*", step_metric=steps)
            self._late_groups.add(group)
        self._run.log({**values, steps: env_steps})

    def log_video(self, video: Path, name: str, caption: str, env_steps: int) -> None:
        """See `Tracker.log_video`."""
        value = self._wandb.Video(str(video), caption=caption, format="mp4")
        self._log_late(name.partition("/")[0], {name: value}, env_steps)

    def flush(self) -> None:
        """Do nothing: W&B writes in a process of its own."""

    def close(self) -> None:
        """Wait until all data is on disk (offline) or uploaded."""
        self._run.finish()


class Trackio:
    """Run of Trackio, stored in RUN/trackio unless TRACKIO_DIR is set."""

    def __init__(self, folder: RunFolder, name: str, state: "_TrackerState", print_line: Callable[[str], None]) -> None:
        """Start the run, or continue it if the tracker state says that it exists. Trackio identifies the run by `name`."""
        os.environ.setdefault("TRACKIO_DIR", str(state.folder.absolute()))
        import trackio

        self._trackio: Any = trackio
        trackio.init(
            _PROJECT,
            name=name,
            resume="allow" if state.exists else "never",
            config=flatten_config(folder.tree()),
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def write(self, metrics: Mapping[str, object]) -> None:
        """Add one point to every curve."""
        self._trackio.log(scalars(metrics), step=int(str(metrics["env_steps"])))

    def write_evaluation(self, row: Mapping[str, object]) -> None:
        """Add one point to every curve of the group evaluation/."""
        self._trackio.log(evaluation_scalars(row), step=int(str(row["env_steps"])))

    def log_video(self, video: Path, name: str, caption: str, env_steps: int) -> None:
        """See `Tracker.log_video`."""
        self._trackio.log({name: self._trackio.Video(str(video), caption=caption)}, step=env_steps)

    def flush(self) -> None:
        """Do nothing: Trackio writes immediately, in a thread of its own."""

    def close(self) -> None:
        """Wait until all data is on disk or uploaded."""
        self._trackio.finish()


TRACKERS: dict[str, Callable[[RunFolder, str, "_TrackerState", Callable[[str], None]], Tracker]] = {
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
}
"""Trackers by their name in `run.loggers`, which is also the name of the Python package."""


def check_trackers(loggers: tuple[str, ...]) -> None:
    """Check that the packages of all trackers among `loggers` are installed. Raises ValueError if one is not."""
    for name in loggers:
        if name in TRACKERS and importlib.util.find_spec(name) is None:
            raise ValueError(f"run.loggers contains {name!r}: it is not installed; pip install 'lockstep-rl[track]'")


def track(folder: RunFolder, kind: str, name: str, context: SidecarContext) -> None:
    """Send new metrics and videos of a run to the tracker `kind` until training has ended."""
    with closing(_TrackerState(folder.path / kind)) as state:
        tracker = TRACKERS[kind](folder, name, state, context.print_line)
        tail, evaluations = MetricsTail(folder.path / "metrics.jsonl"), MetricsTail(folder.path / EVALUATIONS)
        ended, steps_of = False, dict[int, int]()
        while not ended:
            state.save()
            ended = context.training_ended.wait(_POLL_INTERVAL)
            for row in tail.read()[0]:
                steps = steps_of[int(str(row["iteration"]))] = int(str(row["env_steps"]))
                if steps > state.env_steps:
                    tracker.write(row)
                    state.env_steps = steps
            for row in evaluations.read()[0]:
                iteration = int(str(row["iteration"]))
                if iteration > state.evaluated:
                    tracker.write_evaluation(row)
                    state.evaluated = iteration
            for video in sorted((folder.path / "videos").glob("*.mp4")):
                match = _VIDEO_NAME.fullmatch(video.name)
                if match and video.name not in state.videos:
                    iteration = int(match[1])
                    steps = steps_of.get(iteration, state.env_steps)
                    tracker.log_video(video, f"videos/{match[2]}", f"iteration {iteration}", steps)
                    state.videos.append(video.name)
            tracker.flush()
        tracker.close()
        state.save()


class _TrackerState:
    """Upload progress of a tracker, stored in lockstep.json in its folder. The folder stays locked until `close`."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder and load the state.

        If the process of an earlier attempt still holds the lock, wait for its end, which is soon.
        """
        self.folder = folder
        self._path = folder / "lockstep.json"
        make_folder(folder)
        self._lock = os.open(folder, os.O_RDONLY)
        with suppress(OSError):  # some file systems do not support locks
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.exists = self._path.exists()
        """True if an earlier process has already started this run in the tracker."""
        stored = json.loads(read_file(self._path)) if self.exists else {}
        self.identity: str = stored.get("id") or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        self.env_steps: int = stored.get("env_steps", -1)
        """Environment steps at the last iteration that was sent."""
        self.evaluated: int = stored.get("evaluated", 0)
        """Iteration of the last evaluation that was sent."""
        self.videos: list[str] = stored.get("videos", [])
        """File names of the videos that were sent."""
        self._saved: bytes | None = None

    def save(self) -> None:
        """Write the state to disk if it has changed."""
        progress = {"env_steps": self.env_steps, "evaluated": self.evaluated, "videos": self.videos}
        content = json.dumps({"id": self.identity, **progress}).encode()
        if content != self._saved:
            write_atomically(self._path, content)
            self._saved = content

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._lock)
