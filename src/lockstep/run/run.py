"""A run as the loop sees it: which iteration comes next, what is recorded, when it is saved and when it stops."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.collect import Shard
from lockstep.algorithm.exchange import DIGEST_BITS, Exchange, ReplicasDiffer
from lockstep.algorithm.plan import Plan
from lockstep.algorithm.update import Update
from lockstep.group.group import Group
from lockstep.rollout import STATUS, Rollout
from lockstep.run.checkpoint import Checkpoint, Counters, prune, write_checkpoint
from lockstep.run.episodes import EPISODE_ROW, EpisodeWindow, write_episode_row
from lockstep.run.folder import RunFolder
from lockstep.run.settings import RunConfig
from lockstep.run.stop import asked_to_stop, listen
from lockstep.run.timing import Lap, Stopwatch

__all__ = ["Run", "Telemetry"]

_OWN = 4
"""Entries of a row of `agree` before the status and the episodes: digest, the trainer's seconds since the last row and those that it
waited, and whether it was asked to stop."""
_WAITING = (1, 2), (_OWN + STATUS.index("iter"), _OWN + STATUS.index("wait"))
"""Of a row: where seconds and seconds waited are, of the shard's trainer and of its player."""
_EPISODES = _OWN + len(STATUS)
"""Those before the episodes."""
_PERIOD = 0.25
"""Seconds between two times that metrics are written and shown. Before a checkpoint and at the end they are in any case."""


class Telemetry(Protocol):
    """All places that the metrics of a run go to: files, the terminal, trackers, videos. Rank 0 has one."""

    def write(self, metrics: Mapping[str, object]) -> None:
        """Take the metrics of one iteration."""

    def flush(self) -> None:
        """Make sure that a kill of this process loses nothing that was written so far."""

    def sync(self) -> None:
        """Wait until `metrics.jsonl` is on disk, where it survives a loss of power."""

    def capture(self, iteration: int, agent: Agent) -> None:
        """Have the agent of this iteration filmed, if videos are recorded during training."""

    def close(self) -> None:
        """Write everything to disk and end all sidecar processes."""


class Run:
    """One run. Every rank has one; rank 0's writes."""

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        plan: Plan,
        lag: int,
        group: Group,
        trainers: Group,
        iterations: int,
        frames: int = 1,
        open_telemetry: "Callable[[Run], Telemetry] | None" = None,
    ) -> None:
        """`iterations` is the number of the last iteration; they count from 1. `trainers` is the group of those that train. A step takes
        `frames` frames of a game. `open_telemetry` is called once, on rank 0, when training starts.
        """
        self.folder = folder
        self.last = iterations
        self.done = 0
        self.stop_at: float = iterations
        """The last iteration as far as the ranks have agreed, the same on all of them when they get there."""
        self.env_steps = 0
        self.solved_at: int | None = None
        self._config = config
        self._plan = plan
        self._alone = [shard for shard, player in enumerate(plan.players) if player not in plan.training]
        """Shards whose players do nothing else."""
        training = {rank: (plan.trained_by(rank)[0], *_WAITING[0]) for rank in plan.training}
        playing = {rank: (plan.played_by(rank)[0], *_WAITING[1]) for rank in plan.playing}
        self._idle_at = tuple(zip(*({**playing, **training}[rank] for rank in range(group.size)), strict=True))
        """For all ranks in order: the row that tells of them, and where in it."""
        self._lag = lag
        self._frames = frames
        self._group = group
        self._trainers = trainers
        self._episodes = EpisodeWindow()
        self.seconds = 0.0
        self._news: NDArray[np.float64] = np.zeros(0)
        self._digest = ""
        self._notes: list[tuple[int, str, NDArray[np.float64], dict[str, float], Mapping[str, float]]] = []
        self._write_at = 0.0
        self._open_telemetry = open_telemetry
        self._telemetry: Telemetry | None = None
        self.saved = 0
        self._restorable = True

    @property
    def progress(self) -> float:
        """Share of the run that is done, in [0, 1]."""
        return self.done / self.last

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last episodes, at most 20; None before the first one ended."""
        returns = self._episodes.returns
        return sum(returns) / len(returns) if returns else None

    @property
    def window(self) -> int:
        """How many episodes `return_mean` is of."""
        return len(self._episodes.returns)

    @property
    def goal(self) -> float | None:
        """`run.solved_return`."""
        return self._config.solved_return

    @property
    def stopped(self) -> bool:
        """Whether the ranks agreed to stop before the last iteration."""
        return self.stop_at < self.last

    def start(self, shards: Sequence[Shard], update: Update) -> None:
        """Open telemetry and listen to signals. `shards` are those that are played here."""
        renews = torch.tensor([[any(shard.engine.renews for shard in shards)]])
        self._restorable = not bool(self._group.gather(renews, "start").any())
        if not self._restorable:
            update.renew()  # as the environments were, if the run was resumed
        if self._group.rank == 0 and self._open_telemetry is not None:
            self._telemetry = self._open_telemetry(self)
        listen(aloud=self._group.rank == 0)
        self._watch = Stopwatch(self._group)
        self._lap, self._status_lap, self._trainer_lap = Lap(self._watch), Lap(self._watch), Lap(self._watch)

    def iterations(self) -> Iterator[int]:
        """The iterations that are still to do, until the last one or until the ranks agree to stop."""
        while self.done < self.stop_at:
            yield self.done + 1

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Books the time spent inside as `t_name`, less the time that ranks spent on each other."""
        return self._watch.phase(name)

    def status(self) -> list[float]:
        """What this rank has to say as a player, in the order of `STATUS`."""
        return [float(asked_to_stop()), *self._status_lap().values()]

    def agree(self, iteration: int, rollouts: Sequence[Rollout], agent: Agent) -> None:
        """Brings together what trainers and their players have to say; they agree on when to stop.

        A rank that only plays learns of it through `Exchange.publish`. Raises ReplicasDiffer.
        """
        if not rollouts:
            return
        self._digest = agent.digest()
        lap = self._trainer_lap()
        own = [int(self._digest[: DIGEST_BITS // 4], 16), lap["iter"], lap["wait"], asked_to_stop()]
        shards = self._plan.trained_by(self._group.rank)
        rows = torch.empty(len(shards), _EPISODES + EPISODE_ROW, dtype=torch.float64)
        for shard, rollout, row in zip(shards, rollouts, rows.numpy(), strict=True):
            row[:_OWN] = own
            row[_OWN:_EPISODES] = rollout.status
            write_episode_row(rollout, shard * rollout.rewards.shape[1], row[_EPISODES:])
        self._news = self._trainers.gather(rows, "record").numpy()
        told = self._news[:, : _OWN + 1].tolist()
        if any(digest != told[0][0] for digest, *_ in told):
            raise ReplicasDiffer(
                f"ranks hold different weights after iteration {iteration}; please report this with the config"
            )
        if any(any(wishes) for _, _, _, *wishes in told):  # a trainer's own wish, or its player's
            # players are ahead by the lag, and end where everybody ends
            self.stop_at = min(self.stop_at, iteration + self._lag)

    def record(self, iteration: int, losses: Mapping[str, float]) -> None:
        """Notes the iteration's metrics, on rank 0; a few times a second they are written."""
        self.done = iteration
        if self._group.rank:
            return
        self._notes.append((iteration, self._digest, self._news, self._lap(), losses))
        if perf_counter() >= self._write_at:
            self._write_notes()

    def _write_notes(self) -> None:
        """Several iterations' at once take a fifth of the time per iteration: their code and tables are in the processor's caches."""
        for iteration, digest, news, lap, losses in self._notes:
            status, rows = news[:, _OWN:_EPISODES], news[:, _EPISODES:]
            steps = int(rows[:, 0].sum())
            self.env_steps += steps
            self.seconds += lap["iter"]
            episodes = self._episodes.add(rows)
            self._note_solved(episodes["return_mean_20"])
            metrics = {
                "iteration": iteration,
                "env_steps": self.env_steps,
                **({"frames": self.env_steps * self._frames} if self._frames > 1 else {}),
                "fps": steps / lap["iter"],
                "seconds": self.seconds,
                **{f"t_{name}": seconds for name, seconds in lap.items()},
                **self._players(status),
                "idle": self._idle(news),
                "lag": min(self._lag, iteration - 1),
                **episodes,
                **losses,
                "digest": digest,
            }
            if self._telemetry is not None:
                self._telemetry.write(metrics)
        if self._telemetry is not None:
            self._telemetry.flush()
        self._notes.clear()
        self._write_at = perf_counter() + _PERIOD

    def _players(self, status: NDArray[np.float64]) -> dict[str, float]:
        """Mean seconds of the players that do nothing else."""
        if not self._alone:
            return {}
        mean = status[self._alone].mean(0).tolist()
        return {f"player_t_{name}": mean[place] for place, name in enumerate(STATUS) if place}

    def _idle(self, news: NDArray[np.float64]) -> list[float]:
        """Share of the time that each rank waited for others."""
        rows, whole, waited = map(list, self._idle_at)
        shares: list[float] = (news[rows, waited] / np.maximum(news[rows, whole], 1e-9)).round(4).tolist()
        return shares

    def _note_solved(self, mean: float | int | None) -> None:
        goal = self._config.solved_return
        if goal is not None and mean is not None and mean >= goal and self.solved_at is None:
            self.solved_at = self.env_steps

    def save_if_due(self, shards: Sequence[Shard], update: Update, exchange: Exchange) -> None:
        """Leaves a checkpoint at its time and after the last iteration, and begins new episodes where the boundary rule says so.

        When the ranks stop early they save too, unless environments could not come back as they are: then the last regular
        checkpoint is the one to resume from, and what came after it will be done again to the same bits.
        """
        regular, ends = self.done % self._config.checkpoint_every == 0, self.done == self.stop_at
        if regular or ends:
            exchange.confirm(self.done)  # players with a lag don't know yet whether the trainers have anything to save
        if regular or self.done == self.last or (ends and self._restorable):
            self.save(shards, update, exchange.acting)
        if self._telemetry is not None and self._config.capture_video and self.done % self._config.capture_video == 0:
            self._telemetry.capture(self.done, update.agent)
        if regular:
            for shard in shards:
                shard.renew(self.done)
            if not self._restorable:
                update.renew()

    def save(self, shards: Sequence[Shard], update: Update, acting: Agent) -> None:
        """Writes a checkpoint, all ranks together."""
        self._write_notes()  # or after a kill those before the checkpoint would be missing
        if self._telemetry is not None:
            self._telemetry.sync()  # or at a loss of power
        counters = {
            "env_steps": self.env_steps,
            "seconds": self.seconds,
            "solved_at": self.solved_at,
            "last_returns": list(self._episodes.returns),
        }
        own = {f"shard-{shard.index:04d}": shard.state() for shard in shards} | update.shard_states()
        if self._lag and self._plan.players[0] == self._group.rank:
            own["acting"] = acting.state()
        if self._group.rank == 0:
            own |= {"agent": update.agent.state(), "optimizer": update.state()}
        write_checkpoint(self.folder, self.done, self._group, own, counters)
        self.saved = self.done
        if self._group.rank == 0:
            prune(self.folder, self._config.keep)

    def resume(self, checkpoint: Checkpoint, shards: Sequence[Shard], update: Update, exchange: Exchange) -> None:
        """Goes back to a checkpoint. Raises ValueError if it does not fit the experiment."""
        try:
            iteration, self.env_steps, self.seconds, self.solved_at, returns = Counters.of(checkpoint.state)
            self.done = self.saved = iteration
            self._episodes = EpisodeWindow(returns)
            update.agent.load(checkpoint.tensors("agent"))
            update.load(checkpoint.tensors("optimizer"))
            update.load_shard_states(checkpoint.tensors)
            exchange.begin(self.done)
            if self._lag:
                exchange.acting.load(checkpoint.tensors("acting"))
            for shard in shards:
                shard.restore(checkpoint.shard(shard.index), self.done)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"checkpoint {checkpoint.path} does not fit this run: {error}") from None

    def close(self) -> None:
        """Write the metrics that are still to be written, and close telemetry."""
        self._write_notes()
        if self._telemetry is not None:
            self._telemetry.close()
