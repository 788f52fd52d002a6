"""Communication between players and trainers: `route` sends rollouts to trainers, `publish` sends the agent to players.

Both send tensors of fixed shapes. A rank that is player and trainer at once sends itself nothing. With a lag of 1 the players' agent is one
update behind on every rank, so that the results do not depend on the assignment of shards to ranks:

    lag 0   iteration k: players collect with agent k-1; trainers train and publish agent k; players load agent k
    lag 1   iteration k: players collect with agent k-2; trainers train and publish agent k; players load agent k-1

Trainers all have the same agent, so each publishes it to a part of the players. If that part is large, players pass on what they receive:
no rank sends an agent more than FAN_OUT times (`publishers.py`).

`lag + 1` slots per channel are enough. A player reuses the slot of a rollout only after it has received the agent that was trained on
it, and a trainer reuses the slot of an agent only after it has received the rollouts that this agent collected, from all players.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.non_finite import NonFinite
from lockstep.algorithm.plan import Plan
from lockstep.algorithm.preemption import Preemption
from lockstep.algorithm.publishers import publishers
from lockstep.group.channel import Channel
from lockstep.group.group import Group
from lockstep.rollout import Rollout

__all__ = ["Exchange", "LastIteration", "ReplicasDiffer", "TrainersDiffer", "leading_bits"]

_DIGEST_BITS = 48
"""Leading bits of a digest that ranks compare; a float64 represents them exactly."""


class LastIteration(NamedTuple):
    """The last iteration, as far as the ranks have agreed on it."""

    number: float
    complete: bool = False
    """True if training ends because its goal is reached or a hook ends it, False if it can be resumed or has used its budget."""

    def or_earlier(self, other: "LastIteration") -> "LastIteration":
        """Return the one that comes first; of two for the same iteration, the complete one."""
        return min(self, other, key=lambda last: (last.number, not last.complete))


class ReplicasDiffer(RuntimeError):
    """Two ranks hold different weights: a bug, or a memory fault."""


class TrainersDiffer(ReplicasDiffer):
    """Trainers hold different weights. All trainers raise this error."""


class Exchange:
    """Channels of one rank. All ranks create theirs at the same time."""

    def __init__(
        self,
        group: Group,
        plan: Plan,
        agent: Agent,
        acting: Agent,
        specs: Sequence[tuple[tuple[int, ...], torch.dtype]],
        lag: int,
        separate: bool,
        preemption: Preemption | None = None,
    ) -> None:
        """Open the channels between the ranks of `group`.

        `agent` is the one that this rank trains, or else its acting agent; `acting` collects, and is `lag` updates behind. `separate` is True
        if a rank that plays and trains has two agents, as it must with a lag. `specs` are shapes and types of the tensors of a rollout.
        `preemption` is what players of all ranks need to end rollouts early.
        """
        self.acting = acting
        self.preemption = preemption
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
        published = [*((tuple(tensor.shape), tensor.dtype) for tensor in agent.published()), ((4,), torch.float64)]
        channels = {
            player: (source, group.channel(source, player, published, lag + 1, "publish"))
            for player, source in publishers(plan, separate).items()
        }
        outgoing = [channel for source, channel in channels.values() if channel and source == group.rank]
        self._outgoing, self._relayed = (outgoing, []) if group.rank in plan.training else ([], outgoing)
        self._incoming = channels[group.rank][1] if group.rank in channels else None
        self._passed_on = 0

    def slots(self, shard: int) -> list[Rollout]:
        """Return the buffers for a shard's rollouts, which are used in turn."""
        return self._slots[shard]

    def begin(self, iteration: int) -> None:
        """Start after an iteration, with the current `agent` on every rank."""
        self._begun = iteration
        for channel in (*self._outgoing, self._incoming):
            if channel:
                self._write(channel.slot(iteration), LastIteration(math.inf))

    def route(self, iteration: int, status: Sequence[float]) -> list[Rollout]:
        """Send the rollouts that this rank played, with its `status`; return those that it trains on, ascending by shard."""
        for shard in self._played:
            self._slot(shard, iteration).status.numpy()[:] = status
            self._channel(shard).send(iteration)
        for shard in self._trained:
            self._channel(shard).receive(iteration)
        return [self._slot(shard, iteration) for shard in self._trained]

    def publish(self, iteration: int, agreed: LastIteration) -> LastIteration:
        """Send the trained agent, and load the one of `lag` iterations ago into `acting`.

        `agreed` is the last iteration that trainers have agreed on; returns the last iteration as this rank has it afterwards.
        Raises ReplicasDiffer, and NonFinite if the trainers' update failed.
        """
        for channel in self._outgoing:
            self._write(channel.slot(iteration), agreed)
            channel.send(iteration)
        if self._incoming is None:
            return agreed
        number = iteration - self._lag
        *published, header = self._receive(self._incoming, number)
        last, complete, digest, _ = map(float, header.tolist())
        self.acting.load_published(published)
        if leading_bits(self.acting.digest()) != digest:
            raise ReplicasDiffer(
                f"player and trainer hold different weights after iteration {number}: resume the run; if it happens again, report it with the config"
            )
        return agreed.or_earlier(LastIteration(last, bool(complete)))

    def confirm(self, iteration: int) -> None:
        """Wait for the update of `iteration` without loading it. Raises NonFinite if the trainers' update failed."""
        if self._incoming is not None:
            self._receive(self._incoming, iteration)

    def report_failure(self, iteration: int) -> None:
        """Tell the players that the update of an iteration failed, so that they do not wait for it."""
        for channel in self._outgoing:
            self._write(channel.slot(iteration), LastIteration(math.inf), fault=True)
            channel.send(iteration)

    def close(self) -> None:
        """Finish pending transfers."""
        for channel in (*self._routes, *self._outgoing, *self._relayed):
            if channel:
                channel.close()

    def _receive(self, channel: Channel, number: int) -> Sequence[Tensor]:
        if number > self._begun:
            channel.receive(number)
        published = channel.slot(number)
        if number > max(self._begun, self._passed_on):
            self._pass_on(number, published)
        if published[-1][-1]:
            raise NonFinite("the update of a trainer failed: a value is not finite; see the message of that rank")
        return published

    def _pass_on(self, number: int, published: Sequence[Tensor]) -> None:
        for channel in self._relayed:
            for target, tensor in zip(channel.slot(number), published, strict=True):
                target.copy_(tensor)
            channel.send(number)
        self._passed_on = number

    def _slot(self, shard: int, iteration: int) -> Rollout:
        return self._slots[shard][iteration % (self._lag + 1)]

    def _channel(self, shard: int) -> Channel:
        channel = self._routes[shard]
        assert channel is not None
        return channel

    def _write(self, slot: Sequence[Tensor], agreed: LastIteration, fault: bool = False) -> None:
        *buffers, header = slot
        for buffer, tensor in zip(buffers, self._agent.published(), strict=True):
            buffer.copy_(tensor)
        header.copy_(torch.tensor([*agreed, leading_bits(self._agent.digest()), fault], dtype=torch.float64))


def leading_bits(digest: str) -> int:
    """Return the leading bits of a hexadecimal digest as the number that ranks compare."""
    return int(digest[: _DIGEST_BITS // 4], 16)
