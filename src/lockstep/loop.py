"""The training loop, the same for every plan and every number of ranks."""

from collections.abc import Sequence

from lockstep.collect import Shard, collect
from lockstep.run.run import Run
from lockstep.update import Update

__all__ = ["train"]


def train(shards: Sequence[Shard], update: Update, run: Run) -> None:
    """Collect, update, record, save: until the budget is spent or the ranks agree to stop.

    `shards` are those that this rank carries, ascending.
    """
    for iteration in run.iterations():
        with run.phase("rollout"):
            rollouts = [collect(shard, update.agent, iteration) for shard in shards]
        with run.phase("learn"):
            losses = update(rollouts, iteration, run.progress)
        with run.phase("record"):
            run.record(iteration, shards, rollouts, losses, update.agent)
            run.save_if_due(shards, update)
