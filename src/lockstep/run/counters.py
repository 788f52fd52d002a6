"""The counters of a run, and the metrics of its iterations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.algorithm.plan import Plan
from lockstep.rollout import PLAYER_FIELDS
from lockstep.run.checkpoint import SavedCounters
from lockstep.run.episodes import EpisodeWindow
from lockstep.run.records import IdleTimes, ShardRecords

__all__ = ["IterationRecord", "RunCounters"]


@dataclass(frozen=True)
class IterationRecord:
    """Record of one iteration on rank 0."""

    iteration: int
    digest: str
    shards: ShardRecords
    lap: Mapping[str, float]
    """Seconds by phase, see `Lap`."""
    losses: Mapping[str, float]


class RunCounters:
    """Counters of steps, seconds and episodes on rank 0. They convert the records of iterations into metrics."""

    def __init__(
        self,
        plan: Plan,
        ranks: int,
        lag: int,
        frames: int,
        goal: float | None,
        info_metrics: Sequence[str] = (),
        shows_faults: bool = False,
        preempts: bool = False,
    ) -> None:
        """Start at 0. `frames` is the number of frames per step of an Atari game, `goal` is `run.solved_return`.

        `lag` is the number of updates that the players' weights are behind. `info_metrics` are the names of `env.info_metrics`.
        `shows_faults` is True if the number of replaced environments is a metric also while it is 0, `preempts` if rollouts may end early.
        """
        self.env_steps = 0
        self.seconds = 0.0
        self.solved_at: int | None = None
        """Environment steps at which the mean return first reached `goal`."""
        self.env_faults = 0
        """Number of environments that failed and were replaced."""
        self.goal = goal
        self._shows_faults = shows_faults
        self.preempts = preempts
        """True if rollouts may end early."""
        self.episodes = EpisodeWindow()
        self._player_only = [shard for shard, player in enumerate(plan.players) if player not in plan.training]
        self._idle = IdleTimes(plan, ranks)
        self._lag = lag
        self._frames = frames
        self._info_metrics = [f"info/{name}" for name in info_metrics]

    def add(self, record: IterationRecord) -> dict[str, object]:
        """Count an iteration, and return its metrics."""
        lap, shards = record.lap, record.shards
        steps = int(shards.episodes[:, 0].sum())
        self.env_steps += steps
        self.seconds += lap["iter"]
        self.env_faults += shards.faults
        episodes = self.episodes.add(shards.episodes)
        mean = episodes["return_mean_20"]
        if self.goal is not None and mean is not None and mean >= self.goal and self.solved_at is None:
            self.solved_at = self.env_steps
        return {
            "iteration": record.iteration,
            "env_steps": self.env_steps,
            **({"frames": self.env_steps * self._frames} if self._frames > 1 else {}),
            "fps": steps / lap["iter"],
            "seconds": self.seconds,
            **{f"t_{name}": seconds for name, seconds in lap.items()},
            **self._player_times(shards),
            "idle": self._idle(shards),
            "lag": min(self._lag, record.iteration - 1),
            **episodes,
            **({"env_faults": self.env_faults} if self._shows_faults or self.env_faults else {}),
            **({"preempted": round(shards.preempted, 4)} if self.preempts else {}),
            **dict(zip(self._info_metrics, shards.info_means(), strict=True)),
            **record.losses,
            "digest": record.digest,
        }

    def _player_times(self, shards: ShardRecords) -> dict[str, float]:
        if not self._player_only:
            return {}
        mean = shards.status[self._player_only].mean(0).tolist()
        return {f"player_t_{name}": mean[index] for index, name in enumerate(PLAYER_FIELDS) if index}

    def state(self) -> dict[str, object]:
        """Return the counters for a checkpoint."""
        return {
            "env_steps": self.env_steps,
            "seconds": self.seconds,
            "solved_at": self.solved_at,
            "env_faults": self.env_faults,
            "last_returns": list(self.episodes.returns),
            "return_mean_20": self.episodes.full_mean,
        }

    def load(self, counters: SavedCounters) -> None:
        """Restore the counters of a checkpoint."""
        _, self.env_steps, self.seconds, self.solved_at, returns, self.env_faults = counters
        self.episodes = EpisodeWindow(returns)
