"""The training loop, the same for every plan and every number of ranks."""

from collections.abc import Sequence

from lockstep.algorithm.collect import Shard, collect
from lockstep.algorithm.exchange import Exchange
from lockstep.algorithm.update import Update
from lockstep.run.run import TrainingRun

__all__ = ["train"]


def train(shards: Sequence[Shard], exchange: Exchange, update: Update, run: TrainingRun) -> None:
    """Collect, route, update, publish, record, with the shards that this rank plays, until the ranks agree to stop."""
    for iteration in run.iterations():
        with run.phase("rollout"):
            collect(shards, exchange.acting, iteration, update.fused, exchange.preemption)
        with run.phase("sync"):
            rollouts = exchange.route(iteration, run.status())
        with run.phase("learn"):
            losses = update(rollouts, iteration, run.progress)
        with run.phase("publish"):
            run.agree(iteration, rollouts, update.agent)
            run.stop = exchange.publish(iteration, run.stop)
        with run.phase("record"):
            run.record(iteration, losses)
            run.save_if_due(shards, update, exchange)
