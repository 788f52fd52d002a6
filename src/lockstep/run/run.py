"""A run as the loop sees it: which iteration comes next, what is recorded, when it is saved and when it stops."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import torch

from lockstep.agent import Agent
from lockstep.collect import Shard
from lockstep.group.group import Group
from lockstep.rollout import Rollout
from lockstep.run.checkpoint import Checkpoint, prune, write_checkpoint
from lockstep.run.episodes import EpisodeWindow, episode_row
from lockstep.run.folder import RunFolder
from lockstep.run.loggers import JsonLines, Logger, TensorBoard
from lockstep.run.progress import Display, Nothing, display
from lockstep.run.settings import RunConfig
from lockstep.run.stop import asked_to_stop, listen
from lockstep.update import Update

__all__ = ["ReplicasDiffer", "Run"]

_DIGEST_BITS = 48
"""Of the digest, that ranks compare each iteration: what a float64 holds exactly."""


class ReplicasDiffer(RuntimeError):
    """Two ranks hold different weights, which must never happen."""


class Run:
    """One run. Every rank has one; rank 0's writes."""

    def __init__(self, folder: RunFolder, config: RunConfig, group: Group, iterations: int) -> None:
        """`iterations` is the number of the last iteration; they count from 1."""
        self.folder = folder
        self.last = iterations
        self.done = 0
        self.env_steps = 0
        self.solved_at: int | None = None
        self._config = config
        self._group = group
        self._episodes = EpisodeWindow()
        self.seconds = 0.0
        self._phases: dict[str, float] = {}
        self._loggers: list[Logger] = []
        self._display: Display = Nothing()
        self._stop = 0
        self.saved = 0

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
        return self._stop != 0 and self.done < self.last

    def start(self) -> None:
        """Opens loggers and display, and listens to signals."""
        if self._group.rank == 0:
            self._loggers.append(JsonLines(self.folder.path / "metrics.jsonl"))
            if "tensorboard" in self._config.loggers:
                self._loggers.append(TensorBoard(self.folder.path / "tb", self.env_steps + 1))
            self._display = display(self._config.progress, self.done, self.last)
        listen()
        self._mark = perf_counter()

    def iterations(self) -> Iterator[int]:
        """The iterations that are still to do, until the last one or until the ranks agree to stop."""
        while self.done < self.last and not self._stop:
            yield self.done + 1

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Books the time spent inside as `t_name`, less the time that ranks spent on each other."""
        begun = perf_counter()
        yield
        waited, moved = self._group.timings()
        self._book(name, perf_counter() - begun - waited - moved)
        self._book("wait", waited)
        self._book("sync", moved)

    def _book(self, name: str, seconds: float) -> None:
        self._phases[name] = self._phases.get(name, 0.0) + seconds

    def record(
        self,
        iteration: int,
        shards: Sequence[Shard],
        rollouts: Sequence[Rollout],
        losses: dict[str, float],
        agent: Agent,
    ) -> None:
        """Brings the ranks' episodes together, checks that the ranks agree, and writes the iteration's metrics."""
        digest = agent.digest()
        own = [int(digest[: _DIGEST_BITS // 4], 16), asked_to_stop()]
        rows = [
            torch.cat(
                [torch.tensor(own, dtype=torch.float64), episode_row(rollout, shard.index * rollout.rewards.shape[1])]
            )
            for shard, rollout in zip(shards, rollouts, strict=True)
        ]
        everybody = self._group.gather(torch.stack(rows), "record")
        if bool((everybody[:, 0] != everybody[0, 0]).any()):
            raise ReplicasDiffer(
                f"ranks hold different weights after iteration {iteration}; please report this with the config"
            )
        self._stop = int(everybody[:, 1].max())
        steps = int(everybody[:, 2].sum())
        self.done, self.env_steps = iteration, self.env_steps + steps
        episodes = self._episodes.add(everybody[:, 2:])
        now = perf_counter()
        elapsed, self._mark = now - self._mark, now
        self.seconds += elapsed
        timings = {"fps": steps / elapsed, "seconds": self.seconds, "t_iter": elapsed}
        timings |= {f"t_{name}": seconds for name, seconds in self._phases.items()}
        self._phases.clear()
        self._note_solved(episodes["return_mean_20"])
        metrics = {
            "iteration": iteration,
            "env_steps": self.env_steps,
            **timings,
            **episodes,
            **losses,
            "digest": digest,
        }
        for logger in self._loggers:
            logger.write(metrics)
        self._display.show(metrics, self.last)

    def _note_solved(self, mean: float | int | None) -> None:
        goal = self._config.solved_return
        if goal is not None and mean is not None and mean >= goal and self.solved_at is None:
            self.solved_at = self.env_steps

    def save_if_due(self, shards: Sequence[Shard], update: Update) -> None:
        """Leaves a checkpoint at its time and after the last iteration, and begins new episodes where the boundary rule says so.

        When the ranks stop early they save too, unless environments could not come back as they are: then the last regular
        checkpoint is the one to resume from, and what came after it will be done again to the same bits.
        """
        regular = self.done % self._config.checkpoint_every == 0
        restorable = not any(shard.engine.renews for shard in shards)
        if regular or self.done == self.last or (self._stop and restorable):
            self.save(shards, update)
        if regular:
            for shard in shards:
                shard.renew(self.done)

    def save(self, shards: Sequence[Shard], update: Update) -> None:
        """Writes a checkpoint, all ranks together."""
        counters = {
            "env_steps": self.env_steps,
            "seconds": self.seconds,
            "solved_at": self.solved_at,
            "last_returns": list(self._episodes.returns),
        }
        states = {shard.index: shard.state() for shard in shards}
        rest = {"agent": update.agent.state(), "optimizer": update.state()}
        write_checkpoint(self.folder, self.done, self._group, states, rest, counters)
        self.saved = self.done
        if self._group.rank == 0:
            prune(self.folder, self._config.keep)

    def resume(self, checkpoint: Checkpoint, shards: Sequence[Shard], update: Update) -> None:
        """Goes back to a checkpoint. Raises ValueError if it does not fit the experiment."""
        try:
            state = checkpoint.state
            self.done = self.saved = int(state["iteration"])
            self.env_steps = int(state["env_steps"])
            self.seconds, self.solved_at = float(state["seconds"]), state["solved_at"]
            self._episodes = EpisodeWindow(state["last_returns"])
            update.agent.load(checkpoint.tensors("agent"))
            update.load(checkpoint.tensors("optimizer"))
            for shard in shards:
                shard.restore(checkpoint.shard(shard.index), self.done)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"checkpoint {checkpoint.path} does not fit this run: {error}") from None

    def close(self) -> None:
        """Closes loggers and display."""
        self._display.close()
        for logger in self._loggers:
            logger.close()
