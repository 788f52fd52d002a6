"""The training loop, the same for every plan and every number of ranks."""

from collections.abc import Sequence

from lockstep.algorithm.collect import Shard, collect
from lockstep.algorithm.exchange import Exchange
from lockstep.algorithm.update import Update
from lockstep.run.run import TrainingRun

__all__ = ["train"]


def train(shards: Sequence[Shard], exchange: Exchange, update: Update, run: TrainingRun) -> None:
    """Collect (phase `rollout`), route (`sync`), update (`learn`), publish and record, until the ranks agree to stop.

    `collect` writes into the rollouts of `shards`, which `exchange` shares: `route` sends them to the ranks that train.
    """
    for iteration in run.iterations():
        with run.phase("rollout"):
            collect(shards, exchange.acting, iteration, update.fused, exchange.preemption)
        with run.phase("sync"):
            rollouts = exchange.route(iteration, run.status())
        with run.phase("learn"):
            losses = update(rollouts, iteration, run.progress)
        with run.phase("publish"):
            run.agree(iteration, rollouts, update.agent)
            run.last_iteration = exchange.publish(iteration, run.last_iteration)
        with run.phase("record"):
            run.record(iteration, losses)
            run.save_if_due(shards, update, exchange)
