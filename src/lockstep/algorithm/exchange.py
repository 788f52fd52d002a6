"""The verbs between players and trainers: `route` brings rollouts to who trains on them, `publish` brings the agent to who plays.

Both move tensors of fixed shapes, and nothing where a rank is player and trainer at once. With a lag of 1 the players are one
agent behind, on every rank, so that the numbers do not depend on who carries what:

    lag 0   collect k with agent k-1, train on k, publish agent k
    lag 1   collect k with agent k-2, meanwhile train on k-1; publish agent k-1

`lag + 1` slots per channel are enough. A player fills a rollout's slot again only after it got the agent that was trained on it, and
an agent's slot is filled again only after the rollout that this agent collected has come in.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.plan import Plan
from lockstep.algorithm.update import NonFinite
from lockstep.group.channel import Channel
from lockstep.group.group import Group
from lockstep.rollout import Rollout

__all__ = ["DIGEST_BITS", "Exchange", "ReplicasDiffer"]

DIGEST_BITS = 48
"""Of a digest, that ranks compare: what a float64 holds exactly."""


class ReplicasDiffer(RuntimeError):
    """Two ranks hold different weights, which must never happen."""


class Exchange:
    """What this rank sends and receives. Every rank makes one, at the same time."""

    def __init__(
        self,
        group: Group,
        plan: Plan,
        agent: Agent,
        acting: Agent,
        specs: Sequence[tuple[tuple[int, ...], torch.dtype]],
        lag: int,
        separate: bool,
    ) -> None:
        """`agent` is the one that is trained here, `acting` the one that collects. `specs` are those of a rollout. `separate` says
        whether a rank that plays and trains keeps the two apart, as it must with a lag.
        """
        self.acting = acting
        self._agent = agent
        self._lag = lag
        self._begun = 0
        self._played, self._trained = plan.played_by(group.rank), plan.trained_by(group.rank)
        self._routes = [
            group.channel(player, trainer, specs, lag + 1, "rollout")
            for player, trainer in zip(plan.players, plan.trainers, strict=True)
        ]
        self._slots = [
            [Rollout(*channel.slot(number)) for number in range(lag + 1)] if channel else [] for channel in self._routes
        ]
        published = [*((tuple(tensor.shape), tensor.dtype) for tensor in agent.published()), ((3,), torch.float64)]
        channels = {
            player: (source, group.channel(source, player, published, lag + 1, "publish"))
            for player, source in _sources(plan, separate).items()
        }
        self._outgoing = [channel for source, channel in channels.values() if channel and source == group.rank]
        self._incoming = channels[group.rank][1] if group.rank in channels else None

    def slots(self, shard: int) -> list[Rollout]:
        """Where that shard's rollouts are written or read, in turn by iteration."""
        return self._slots[shard]

    def begin(self, iteration: int) -> None:
        """Starts after iteration `iteration`, with what `agent` is now on every rank."""
        self._begun = iteration
        for channel in (*self._outgoing, self._incoming):
            if channel:
                self._write(channel.slot(iteration), math.inf)

    def route(self, iteration: int, status: Sequence[float]) -> list[Rollout]:
        """Sends the rollouts that were played here; returns those to be trained on here, by shard."""
        for shard in self._played:
            self._slot(shard, iteration).status.numpy()[:] = status
            self._channel(shard).send(iteration)
        for shard in self._trained:
            self._channel(shard).receive(iteration)
        return [self._slot(shard, iteration) for shard in self._trained]

    def publish(self, iteration: int, stop_at: float) -> float:
        """Sends the trained agent, and brings `acting` to that of `lag` iterations ago.

        `stop_at` is the last iteration, as far as trainers have agreed; what is known here afterwards is returned.
        Raises ReplicasDiffer, and NonFinite when the trainers had to give up.
        """
        for channel in self._outgoing:
            self._write(channel.slot(iteration), stop_at)
            channel.send(iteration)
        if self._incoming is None:
            return stop_at
        number = iteration - self._lag
        *published, orders = self._received(self._incoming, number)
        agreed, digest, _ = map(float, orders.tolist())
        self.acting.take(published)
        if _short(self.acting.digest()) != digest:
            raise ReplicasDiffer(
                f"player and trainer hold different weights after iteration {number}; please report this with the config"
            )
        return min(stop_at, agreed)

    def confirm(self, iteration: int) -> None:
        """Waits until the update of `iteration` is done, without acting on it: before a checkpoint, and before the end.

        Raises NonFinite when the trainers had to give up.
        """
        if self._incoming is not None:
            self._received(self._incoming, iteration)

    def give_up(self, iteration: int) -> None:
        """Tells the players that this iteration's update failed, so that they do not wait for it."""
        for channel in self._outgoing:
            self._write(channel.slot(iteration), math.inf, fault=True)
            channel.send(iteration)

    def close(self) -> None:
        """Finishes what is still being sent."""
        for channel in (*self._routes, *self._outgoing):
            if channel:
                channel.close()

    def _received(self, channel: Channel, number: int) -> Sequence[Tensor]:
        """What was published after that iteration."""
        if number > self._begun:
            channel.receive(number)
        published = channel.slot(number)
        if published[-1][-1]:
            raise NonFinite("a trainer met a value that is not finite; its message says where")
        return published

    def _slot(self, shard: int, iteration: int) -> Rollout:
        return self._slots[shard][iteration % (self._lag + 1)]

    def _channel(self, shard: int) -> Channel:
        channel = self._routes[shard]
        assert channel is not None
        return channel

    def _write(self, slot: Sequence[Tensor], stop_at: float, fault: bool = False) -> None:
        *places, orders = slot
        for place, tensor in zip(places, self._agent.published(), strict=True):
            place.copy_(tensor)
        orders.copy_(torch.tensor([stop_at, _short(self._agent.digest()), fault], dtype=torch.float64))


def _sources(plan: Plan, separate: bool) -> dict[int, int]:
    """For every rank that gets its acting agent through a channel, the rank that gives it."""
    leader, *_ = training = plan.training
    return {
        player: player if player in training else leader
        for player in plan.playing
        if separate or player not in training
    }


def _short(digest: str) -> int:
    return int(digest[: DIGEST_BITS // 4], 16)
