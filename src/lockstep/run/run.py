"""A run as the training loop sees it: its iterations, metrics, checkpoints, and the agreement on when to stop."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.collect import Shard
from lockstep.algorithm.exchange import Exchange, LastIteration, TrainersDiffer, leading_bits
from lockstep.algorithm.non_finite import NonFiniteWeights
from lockstep.algorithm.plan import Plan
from lockstep.algorithm.update import Update
from lockstep.group.group import Group
from lockstep.messages import print_warning
from lockstep.models.state import NonFiniteState
from lockstep.processes.heartbeat import enter, set_iteration
from lockstep.rollout import Rollout
from lockstep.run.checkpoint import Checkpoint, CheckpointFailed, SavedCounters
from lockstep.run.checkpoint_writer import CheckpointWriter, check_folder, remove_old_checkpoints
from lockstep.run.counters import IterationRecord, RunCounters
from lockstep.run.episodes import EpisodeWindow
from lockstep.run.evaluations import is_due
from lockstep.run.folder import FolderLost, RunFolder
from lockstep.run.manifest import CheckpointDamaged
from lockstep.run.records import FOLDER_LOST, HOOK_STOPS, ShardRecords, pack_records
from lockstep.run.settings import RunConfig
from lockstep.run.stop import asked_to_stop, listen
from lockstep.run.timing import Lap, Stopwatch

__all__ = ["HookResult", "Telemetry", "TrainingRun"]

_PERIOD = 0.25
"""Seconds between two times that metrics are written and shown. They are always written before a checkpoint and at the end."""


class Telemetry(Protocol):
    """All destinations of the metrics of a run: files, the terminal, trackers, videos; and evaluation. Rank 0 has one."""

    def write(self, metrics: Mapping[str, object]) -> None:
        """Write the metrics of one iteration."""

    def flush(self) -> None:
        """Pass everything written so far to the operating system, so that a kill of this process loses nothing."""

    def flush_metrics(self) -> None:
        """Pass `metrics.jsonl` to the operating system. Raises OSError if it can't be written."""

    def sync(self) -> None:
        """Wait until all lines of `metrics.jsonl` that were flushed are on disk (fsync). Any thread may call it."""

    def capture(self, iteration: int, agent: Agent) -> None:
        """Record a video with the agent of this iteration, if videos are recorded during training."""

    def pending_evaluations(self) -> Collection[int]:
        """Return the iterations whose checkpoints wait for evaluation during training, and so must not be removed."""

    def close(self) -> None:
        """Write everything to disk and end all sidecar processes."""


class HookResult(NamedTuple):
    """Result of a user's function that is called after an iteration."""

    metrics: Mapping[str, float]
    """Metrics to record with those of the iteration."""
    stop: bool
    """True to end training."""


class TrainingRun:
    """One run. Every rank has one; only rank 0 writes metrics."""

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        *,
        plan: Plan,
        lag: int,
        group: Group,
        trainers: Group,
        iterations: int,
        frames: int = 1,
        open_telemetry: "Callable[[TrainingRun], Telemetry] | None" = None,
        hook: Callable[[Mapping[str, object], Agent], HookResult] | None = None,
        info_metrics: Sequence[str] = (),
        shows_faults: bool = False,
        preempts: bool = False,
    ) -> None:
        """Create a run that has not started.

        `lag` is the number of updates that the players' weights are behind. `group` has all ranks, `trainers` those
        that train. `iterations` is the number of the last iteration, and the first is 1. `frames` is the number of
        frames per step of an Atari game. `open_telemetry` is called once, on rank 0, when training starts.
        `hook` is called on rank 0 after every iteration, with its metrics and the trained agent. `info_metrics` are the names
        of `env.info_metrics`. `shows_faults` and `preempts` are as in `RunCounters`.
        """
        self.folder = folder
        self.done = 0
        """Number of the last finished iteration."""
        self.saved = 0
        """Number of the iteration of the last checkpoint that is known to be on disk."""
        self.last_iteration = LastIteration(iterations)
        """Agreement of the ranks on the last iteration. Every rank knows it before it gets there."""
        self.counters = RunCounters(
            plan, group.size, lag, frames, config.solved_return, info_metrics, shows_faults, preempts
        )
        self._iterations = iterations
        self._window = EpisodeWindow()
        self._config = config
        self._plan = plan
        self._lag = lag
        self._group = group
        self._trainers = trainers
        self._records = ShardRecords(np.zeros((0, 0)))
        self._digest = ""
        self._pending: list[IterationRecord] = []
        self._rows: list[dict[str, object]] = []
        self._write_at = 0.0
        self._open_telemetry = open_telemetry
        self._telemetry: Telemetry | None = None
        self._hook = hook if group.rank == 0 else None
        self._hook_stops = False
        self._restorable = True
        self._folder_lost = False
        self._writer = CheckpointWriter(folder, group)
        self._checkpoint_failed = False
        """True if the newest due checkpoint could not be written."""
        if group.rank == 0:
            folder.hold()

    @property
    def progress(self) -> float:
        """Fraction of the run that is done, in [0, 1]."""
        return self.done / self._iterations

    @property
    def stop_at_return(self) -> float | None:
        """Value of `run.stop_at_return`."""
        return self._config.stop_at_return

    @property
    def ended_by_hook(self) -> bool:
        """True on rank 0 if a hook ends training."""
        return self._hook_stops

    @property
    def last(self) -> int:
        """The iteration after which training is complete: that of the budget, or the one in which `run.stop_at_return` or a hook ended training."""
        return int(self.last_iteration.number) if self.last_iteration.complete else self._iterations

    @property
    def stopped(self) -> bool:
        """True if the ranks agreed to stop before the last iteration."""
        return self.last_iteration.number < self.last

    def start(self, shards: Sequence[Shard], update: Update) -> None:
        """Open telemetry, and handle signals from now on. `shards` are those that this rank plays."""
        self._agent = update.agent
        restarts_episodes = torch.tensor([[any(shard.engine.restarts_episodes for shard in shards)]])
        self._restorable = not bool(self._group.gather(restarts_episodes, "start").any())
        if not self._restorable:
            update.restart_episodes()  # on resume, Shard.restore has begun new episodes already
        if self._group.rank == 0 and self._open_telemetry is not None:
            self._telemetry = self._open_telemetry(self)
        listen(announce=self._group.rank == 0)
        self._watch = Stopwatch(self._group)
        self._lap, self._status_lap, self._trainer_lap = Lap(self._watch), Lap(self._watch), Lap(self._watch)

    def iterations(self) -> Iterator[int]:
        """Iterate over the remaining iterations, until the last one or until the ranks agree to stop."""
        while self.done < self.last_iteration.number:
            set_iteration(self.done + 1)
            yield self.done + 1

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Count the time inside the `with` block as phase `name`, without the time spent on communication."""
        return self._watch.phase(name)

    def status(self) -> list[float]:
        """Return this rank's entries as a player, in the order of `PLAYER_FIELDS`."""
        return [float(asked_to_stop()), *self._status_lap().values()]

    def agree(self, iteration: int, rollouts: Sequence[Rollout], agent: Agent) -> None:
        """Gather the records of trainers and their players, compare digests, and set `last_iteration` to what the trainers agree on.

        A rank without rollouts, which does not train, returns at once: it receives the last iteration from `Exchange.publish`.
        Raises TrainersDiffer if the digests of trainers differ, and RankLost if a trainer does not take part in time.
        """
        if not rollouts:
            return
        self._digest = agent.digest()
        lap = self._trainer_lap()
        request = HOOK_STOPS if self._hook_stops else FOLDER_LOST if self._folder_lost else asked_to_stop()
        entries = [leading_bits(self._digest), lap["iter"], lap["wait"], request]
        rows = pack_records(entries, self._plan.trained_by(self._group.rank), rollouts)
        self._records = ShardRecords(self._trainers.gather(rows, "record").numpy())
        if not self._records.digests_agree:
            raise TrainersDiffer(
                f"{self._records.describe_difference(self._plan)} after iteration {iteration}: resume the run; if it happens again, report it with the config"
            )
        complete = self._is_goal_reached() or self._records.hook_stops
        if self._records.stop_requested or complete:
            # players are ahead by the lag, and all ranks end with the same iteration
            self.last_iteration = self.last_iteration.or_earlier(LastIteration(iteration + self._lag, complete))

    def _is_goal_reached(self) -> bool:
        """Return True if the mean return of the last 20 episodes is at least `run.stop_at_return`."""
        if self._config.stop_at_return is None:
            return False
        mean = self._window.add(self._records.episodes)["return_mean_20"]
        return mean is not None and mean >= self._config.stop_at_return

    def record(self, iteration: int, losses: Mapping[str, float]) -> None:
        """Queue the metrics of an iteration on rank 0, which writes them a few times per second."""
        self.done = iteration
        if self._group.rank:
            return
        self._pending.append(IterationRecord(iteration, self._digest, self._records, self._lap(), losses))
        if self._hook is not None:
            self._call_hook(self._hook)
        if perf_counter() >= self._write_at:
            self._write_pending()

    def _call_hook(self, hook: Callable[[Mapping[str, object], Agent], HookResult]) -> None:
        metrics = self.counters.add(self._pending.pop())
        self._rows.append(metrics)  # before the call: they are also written if the hook fails
        enter("hook")
        result = hook(metrics, self._agent)
        enter("record")
        self._hook_stops |= result.stop
        metrics |= result.metrics

    def _write_pending(self) -> None:
        """Write the metrics of several iterations at once, which takes a fifth of the time of single writes."""
        self._rows += map(self.counters.add, self._pending)
        self._pending.clear()
        if self._telemetry is not None:
            rows, self._rows = self._rows, []  # before they are written: no failure writes a row twice
            for metrics in rows:
                self._telemetry.write(metrics)
            self._telemetry.flush()
        self._rows.clear()
        self._write_at = perf_counter() + _PERIOD
        try:
            self.folder.check_present()
        except FolderLost:
            self._folder_lost = True  # the ranks agree on the last iteration, and end together in `save_if_due`

    def save_if_due(self, shards: Sequence[Shard], update: Update, exchange: Exchange) -> None:
        """Write a checkpoint at the configured intervals and after the last iteration.

        Engines that can't be restored start new episodes at every regular checkpoint, in every run, so that resuming is
        exact. A run that stops early also saves, except with such engines: when it is resumed, it repeats the
        iterations after the last regular checkpoint, with the same results.
        """
        regular, ends = self.done % self._config.checkpoint_every == 0, self.done == self.last_iteration.number
        evaluated = is_due(self.done, self._config.evaluate_every, self.last)
        if regular or evaluated or ends:
            exchange.confirm(self.done)  # with a lag, players do not know yet whether the trainers' update succeeded
        if regular or evaluated or self.done == self.last or (ends and self._restorable):
            self.save(shards, update, exchange.acting)
        elif ends:
            check_folder(self.folder, self._group)
        if self._telemetry is not None and self._config.capture_video and self.done % self._config.capture_video == 0:
            self._telemetry.capture(self.done, update.agent)
        if regular:
            for shard in shards:
                shard.restart_episodes(self.done)
            if not self._restorable:
                update.restart_episodes()

    def save(self, shards: Sequence[Shard], update: Update, acting: Agent) -> None:
        """Write a checkpoint, all ranks together. If that fails, try again at the next one that is due.

        Raises CheckpointFailed if no later checkpoint is due or the previous one also failed, FolderLost, and NonFiniteWeights, each on all ranks.
        """
        enter("checkpoint")
        self._write_pending()  # metrics of iterations before a checkpoint must survive a kill
        self._await_checkpoint()
        states = {f"shard-{shard.index:04d}": shard.state() for shard in shards} | update.shard_states()
        if self._lag and self._plan.players[0] == self._group.rank:
            states["acting"] = acting.state()
        if self._group.rank == 0:
            states |= {"agent": update.agent.state(), "optimizer": update.state()}
        self._check_finite(states, acting)
        complete = self.last_iteration.complete and self.done == self.last
        counters = self.counters.state() | {"complete": complete, "hook_stops": self._hook_stops}
        telemetry = self._telemetry
        # the metrics before a checkpoint must survive a loss of power too
        steps: dict[str, Callable[[], None]] = {}
        if telemetry is not None:
            removal = self._removal_of_old(telemetry)
            steps = {"flush_metrics": telemetry.flush_metrics, "sync_metrics": telemetry.sync, "remove_old": removal}
        try:
            self._writer.write(self.done, states, counters, **steps)
        except CheckpointFailed as error:
            self._postpone(self.done, error)
        if self.done == self.last_iteration.number:
            self._await_checkpoint()

    def _removal_of_old(self, telemetry: Telemetry) -> Callable[[], None]:
        return partial(remove_old_checkpoints, self.folder, self._config.keep, telemetry.pending_evaluations())

    def _await_checkpoint(self) -> None:
        """Wait until the checkpoint that is being written is on disk. Raises as `save` does."""
        if not (iteration := self._writer.iteration):
            return
        try:
            self._writer.wait()
        except CheckpointFailed as error:
            self._postpone(iteration, error)
        else:
            self.saved = iteration
            self._checkpoint_failed = False

    def _postpone(self, iteration: int, error: CheckpointFailed) -> None:
        """Leave a checkpoint that could not be written to the next one. Raise CheckpointFailed if none follows, or if one failed before."""
        problem = f"the checkpoint of iteration {iteration} can't be written ({error})"
        if self._checkpoint_failed or iteration == self.last_iteration.number:
            raise CheckpointFailed(f"{problem}; {self.last_checkpoint()}") from None
        self._checkpoint_failed = True
        if self._group.rank == 0:
            print_warning(f"{problem}: training continues until the next one is due; {self.last_checkpoint()}")

    def _check_finite(self, states: Mapping[str, Mapping[str, Tensor]], agent: Agent) -> None:
        """Raise NonFiniteWeights on all ranks if one of them would save an agent that is not finite. `agent` names the tensors that must be finite."""
        problem = ""
        try:
            for name in {"agent", "acting"} & states.keys():
                agent.check_finite(states[name])
        except NonFiniteState as error:
            problem = str(error)
        if self._group.gather(torch.tensor([[bool(problem)]]), "checkpoint").any():
            raise NonFiniteWeights(
                f"{problem or 'the weights are not finite'} after iteration {self.done}: lower ppo.learning_rate"
            )

    def last_checkpoint(self) -> str:
        """Describe the last checkpoint, for a message about a run that can't go on."""
        self._finish_writing()
        return f"the last checkpoint is that of iteration {self.saved}" if self.saved else "there is no checkpoint"

    def resume(self, checkpoint: Checkpoint, shards: Sequence[Shard], update: Update, exchange: Exchange) -> None:
        """Restore a checkpoint. Raises ValueError if it does not fit the experiment."""
        try:
            counters = SavedCounters.of(checkpoint.state)
            self.counters.load(counters)
            self._window = EpisodeWindow(counters.last_returns)
            self.done = self.saved = counters.iteration
            self._hook_stops = checkpoint.state.get("hook_stops") is True
            update.agent.load(checkpoint.tensors("agent"))
            update.load(checkpoint.tensors("optimizer"))
            update.load_shard_states(checkpoint.tensors)
            exchange.begin(self.done)
            if self._lag:
                exchange.acting.load(checkpoint.tensors("acting"))
            for shard in shards:
                shard.restore(checkpoint.shard(shard.index), self.done)
        except CheckpointDamaged:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"checkpoint {checkpoint.path} does not fit this run: {error}") from None

    def close(self) -> None:
        """Complete the checkpoint that is being written, write pending metrics, and close telemetry."""
        enter("end")
        with ExitStack() as stack:  # all of it happens, whatever fails
            stack.callback(self.folder.release)
            if self._telemetry is not None:
                stack.callback(self._telemetry.close)
            stack.callback(self._write_pending)
            self._finish_writing()

    def _finish_writing(self) -> None:
        """Wait for the checkpoint that is being written when an error ends the run. Without an error, `save` has waited."""
        iteration, self._writer.iteration = self._writer.iteration, 0
        try:
            self._writer.close()
        except (OSError, FolderLost) as error:
            print_warning(f"the checkpoint of iteration {iteration} can't be written ({error})")
        else:
            self.saved = iteration or self.saved
