"""The `run` section of the config."""

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["RunConfig"]


@dataclass(frozen=True)
class RunConfig:
    """What a run is called, how long it goes on and what it leaves behind."""

    folder: str = "runs"
    """Folder that holds the runs."""
    name: str | None = None
    """Name of the run's own folder. None: preset or environment and seed, numbered if that is taken."""
    seed: int = 1
    """Seed of everything random in the experiment."""
    total_steps: int = 100_000
    """Environment steps, over all environments, rounded down to whole iterations; reset rows are among them."""
    checkpoint_every: int = 50
    """Iterations between checkpoints; the last iteration always leaves one."""
    keep: int = 3
    """Newest checkpoints that are kept."""
    loggers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ("tensorboard",)
    """Where metrics, config and films go besides metrics.jsonl, which is always written. wandb and trackio need the extra `track`."""
    capture_video: int = 0
    """Iterations between films of an episode in the first and in the last environment, with the agent of that iteration, into videos/.
    A process that runs only where processor time is left over makes them. 0: none."""
    progress: Literal["auto", "bar", "lines", "off"] = "auto"
    """What the terminal shows. `auto`: `bar`, the live view, or `lines`, one per iteration, when the output is piped."""
    solved_return: float | None = None
    """Mean return of the last 20 episodes at which the task counts as solved. Reported when it is first reached; training goes on."""

    def __post_init__(self) -> None:
        if self.name is not None and not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", self.name):
            raise ValueError(
                f"run.name is {self.name!r}: it must be 1 to 100 of A-Z a-z 0-9 . _ - and not begin with a dot"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"run.seed is {self.seed}: it must be at least 0 and below 2**63")
        if self.capture_video < 0:
            raise ValueError(f"run.capture_video is {self.capture_video}: it must be at least 0, which means no films")
        for field in ("total_steps", "checkpoint_every", "keep"):
            if getattr(self, field) < 1:
                raise ValueError(f"run.{field} is {getattr(self, field)}: it must be at least 1")
