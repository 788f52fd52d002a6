"""The `run` section of the config."""

import math
import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["WINDOW", "RunConfig"]

WINDOW = 20
"""Number of episodes that `return_mean_20` averages."""


@dataclass(frozen=True)
class RunConfig:
    """Name, length and outputs of a run."""

    folder: str = "runs"
    """Folder that holds the runs."""
    name: str | None = None
    """Name of the run and its folder. None: the preset or the environment, and the seed; a number is appended if a run of
    that name exists."""
    seed: int = 1
    """Seed of all random numbers of the experiment."""
    total_steps: int = 100_000
    """Number of environment steps, over all environments, including reset rows; rounded down to whole iterations."""
    checkpoint_every: int = 50
    """Iterations between checkpoints. The last iteration always writes one."""
    keep: int = 3
    """Number of newest checkpoints that are kept. The best one is kept too: by evaluation during training or, without it, by training return."""
    evaluate_every: int | None = None
    """Iterations between evaluations of the agent, in separate environments, by a process with low priority. Each evaluated iteration writes
    a checkpoint, and the one with the best mean return is kept. The last iteration is always evaluated. None: no evaluation."""
    evaluate_episodes: int = 10
    """Episodes per evaluation with the most probable actions, and as many with sampled actions."""
    loggers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ("tensorboard",)
    """Destinations of metrics, config and videos in addition to metrics.jsonl. wandb and trackio need the extra `track`."""
    capture_video: int = 0
    """Iterations between videos of an episode in the first and in the last environment, with the agent of that iteration, in videos/.
    A process with low priority records them. 0: no videos."""
    progress: Literal["auto", "bar", "lines", "off"] = "auto"
    """Output in the terminal. `bar`: a live view; `lines`: a line every `log_every` seconds; `auto`: `bar` on a terminal and
    in a notebook, else `lines`."""
    log_every: float = 5.0
    """Seconds between two lines of `lines`. 0: a line per iteration."""
    solved_return: float | None = None
    """Mean return of the last 20 episodes at which the task counts as solved. The run reports when it is reached, and continues."""
    stop_at_return: float | None = None
    """Mean return of the last 20 episodes at which training ends, before its budget is used up. None: never."""
    hooks: str | None = None
    """Module with a function `on_iteration`, or `module:function`, which is called after every iteration. Only accepted on the command
    line and from programs, never from a file. None: no hook."""

    store: str | None = None
    """Address of a folder in object storage, such as s3://BUCKET/FOLDER, to which the run is copied while it is trained: checkpoints, metrics
    and videos. With `--resume`, a run that is only there is downloaded first. Needs `run.name`. None: no copy."""

    def __post_init__(self) -> None:
        if self.name is not None and not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", self.name):
            raise ValueError(
                f"run.name is {self.name!r}: it must be 1 to 100 of A-Z a-z 0-9 . _ - and not begin with a dot"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"run.seed is {self.seed}: it must be at least 0 and below 2**63")
        if self.capture_video < 0:
            raise ValueError(f"run.capture_video is {self.capture_video}: it must be at least 0 (0: no videos)")
        if not 0 <= self.log_every < math.inf:
            raise ValueError(f"run.log_every is {self.log_every}: it must be at least 0 (0: a line per iteration)")
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise ValueError(
                f"run.evaluate_every is {self.evaluate_every}: it must be at least 1, or none for no evaluation"
            )
        for field in ("total_steps", "checkpoint_every", "keep", "evaluate_episodes"):
            if not 1 <= getattr(self, field) < 2**53:
                raise ValueError(f"run.{field} is {getattr(self, field)}: it must be at least 1 and below 2**53")
