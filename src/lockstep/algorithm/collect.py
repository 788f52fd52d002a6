"""Collecting: one shard, T steps -> one rollout."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithm.acting import Memory
from lockstep.algorithm.agent import Agent
from lockstep.models.state import check_state
from lockstep.randomness import stream
from lockstep.rollout import Rollout, Sizes

if TYPE_CHECKING:
    from lockstep.envs.engine import Engine

__all__ = ["Shard", "collect", "rollout_sizes"]


class Shard:
    """A group of environments that is never cut, and all that goes on in it from one rollout to the next."""

    def __init__(self, index: int, engine: "Engine", rollouts: Sequence[Rollout], seed: int, gamma: float) -> None:
        """`rollouts` are written in turn, one per iteration. The environments begin their first episodes at once."""
        self.index = index
        self.engine = engine
        self.seed = seed
        self.gamma = gamma
        self._rollouts = rollouts
        observations, rewards = rollouts[0].observations, rollouts[0].rewards
        self.observations = torch.zeros_like(observations[0])
        """`[B, O]`: what the next rollout begins with."""
        self.pixels = torch.zeros_like(rollouts[0].pixels[0])
        """`[B, P]`: its images."""
        self.memory = torch.zeros_like(rollouts[0].states[0])
        """`[B, S]`: what the policy remembers of the episodes so far."""
        self.ended = torch.zeros(rewards.shape[1], dtype=torch.bool)
        """`[B]`: the last step ended an episode, so the next row is a reset row."""
        self.running = torch.zeros(3, rewards.shape[1], dtype=torch.float64)
        """`[3, B]`: return, length and discounted return of the episode so far."""
        self._begin(engine.reset())

    def rollout(self, iteration: int) -> Rollout:
        """Where the rollout of that iteration is."""
        return self._rollouts[iteration % len(self._rollouts)]

    def renew(self, iteration: int) -> None:
        """Starts new episodes if the engine can't be restored (the boundary rule): at every checkpoint, in every run."""
        if self.engine.renews:
            self.ended.zero_()
            self.running.zero_()
            self.memory.zero_()
            self._begin(self.engine.renew(iteration))

    def state(self) -> dict[str, Tensor]:
        """All that exact resume needs, by name."""
        engine = {f"engine.{name}": torch.from_numpy(np.array(value)) for name, value in self.engine.state().items()}
        return {**self._own(), **engine}

    def _own(self) -> dict[str, Tensor]:
        own = {"ended": self.ended, "running": self.running}
        return own | {"memory": self.memory} if self.memory.numel() else own

    def restore(self, state: Mapping[str, Tensor], iteration: int) -> None:
        """Takes back the `state()` of iteration `iteration`. Raises ValueError if the environments do not come back the same."""
        if self.engine.renews:
            self.renew(iteration)
            return
        own = self._own()
        check_state(own, {name: value for name, value in state.items() if name in own})
        for name, value in own.items():
            value.copy_(state[name])
        engine = {
            name.removeprefix("engine."): value.numpy() for name, value in state.items() if name.startswith("engine.")
        }
        self._begin(self.engine.restore(engine))

    def _begin(self, observations: np.ndarray) -> None:
        self.observations.copy_(torch.from_numpy(np.ascontiguousarray(observations)))
        if self.pixels.numel():
            self.pixels.copy_(torch.from_numpy(self.engine.pixels))


def rollout_sizes(agent: Agent, steps: int, count: int, sequence: int = 1) -> Sizes:
    """Of the rollouts that `agent` collects: T, B, L."""
    spaces, kept = agent.spaces, (agent.observation_moments, agent.return_moments)
    action_size = spaces.action_size if spaces.discrete_actions is None else None
    moments = tuple(moments.mean.numel() for moments in kept if moments is not None)
    rows, pixels, state = spaces.observation_size, spaces.pixel_count, agent.state_size
    return Sizes(steps, count, rows, action_size, moments, agent.dtype, pixels, state, sequence)


def collect(shards: Sequence[Shard], agent: Agent, iteration: int, fused: bool = False) -> list[Rollout]:
    """Plays T steps in each environment of each shard.

    Shard by shard, or `fused`: in all of them together, with one batch for the policy per step; equal to rounding.
    """
    rollouts = [shard.rollout(iteration) for shard in shards]
    each = [slice(place, place + 1) for place in range(len(shards))]
    for at in [slice(None)] if fused and len(shards) > 1 else each:
        whole = rollouts[at][0] if len(rollouts[at]) == 1 else _concatenate(rollouts[at])
        _play(shards[at], whole, agent, iteration)
        _split_columns(whole, rollouts[at])
    for shard, rollout in zip(shards, rollouts, strict=True):
        _finish(shard, rollout, agent)
    return rollouts


def _play(shards: Sequence[Shard], whole: Rollout, agent: Agent, iteration: int) -> None:
    """Fills the columns of `whole`: those of the first shard's environments, of the second's, …."""
    steps, count = whole.rewards.shape[0], whole.rewards.shape[1] // len(shards)
    drawn = [
        agent.distribution.noise(stream(shard.seed, "actions", shard.index, iteration), steps, count)
        for shard in shards
    ]
    torch.cat([shard.observations for shard in shards], out=whole.observations[0])
    torch.cat([shard.pixels for shard in shards], out=whole.pixels[0])
    observations, pixels = whole.observations.numpy(), whole.pixels.numpy()
    rewards, terminated, truncated = whole.rewards.numpy(), whole.terminated.numpy(), whole.truncated.numpy()
    noise = drawn[0] if len(drawn) == 1 else np.concatenate(drawn, 1)
    memory = _memory(shards, whole, agent)
    actor = agent.actor(noise, whole.actions.numpy(), memory)
    engines = [(shard.engine, slice(k * count, (k + 1) * count)) for k, shard in enumerate(shards)]
    images = engines if agent.spaces.images else []
    for t in range(steps):
        actions = actor.act(t, observations[t], pixels[t])
        for engine, at in engines:
            observations[t + 1, at], rewards[t, at], terminated[t, at], truncated[t, at] = engine.step(actions[at])
        for engine, at in images:
            pixels[t + 1, at] = engine.pixels
    whole.log_probs.copy_(actor.log_probs())
    whole.values.copy_(actor.values(whole.observations, whole.pixels))
    if memory is not None:
        for shard, kept in zip(shards, memory.state.split(count), strict=True):
            shard.memory.copy_(kept)


def _memory(shards: Sequence[Shard], whole: Rollout, agent: Agent) -> Memory | None:
    """What the policy remembers at the beginning of `whole`, if it has a memory."""
    if not agent.state_size:
        return None
    state = torch.cat([shard.memory for shard in shards]).to(agent.device)
    ended = torch.cat([shard.ended for shard in shards]).numpy()
    return Memory(state, whole.states, ended, whole.terminated.numpy(), whole.truncated.numpy())


def _concatenate(rollouts: Sequence[Rollout]) -> Rollout:
    """An empty rollout with the columns of all of these."""
    own = rollouts[0]
    action_size = None if own.actions.dim() == 2 else own.actions.shape[2]
    (steps, count), (rows, pixels, state) = (
        own.rewards.shape,
        (tensor.shape[2] for tensor in (own.observations, own.pixels, own.states)),
    )
    kind, count = own.observations.dtype, count * len(rollouts)
    return Rollout.empty(Sizes(steps, count, rows, action_size, (), kind, pixels, state, own.sequence_length))


def _split_columns(whole: Rollout, rollouts: Sequence[Rollout]) -> None:
    """Gives each its columns of what was played."""
    if rollouts[0] is whole:
        return
    count = rollouts[0].rewards.shape[1]
    for name in (
        "observations",
        "pixels",
        "states",
        "actions",
        "rewards",
        "terminated",
        "truncated",
        "values",
        "log_probs",
    ):
        for rollout, columns in zip(rollouts, getattr(whole, name).split(count, 1), strict=True):
            getattr(rollout, name).copy_(columns)


def _finish(shard: Shard, rollout: Rollout, agent: Agent) -> None:
    """Everything that does not have to be known while stepping, for all rows at once."""
    shard.observations.copy_(rollout.observations[-1])
    shard.pixels.copy_(rollout.pixels[-1])
    ended = rollout.terminated | rollout.truncated
    torch.logical_not(torch.cat([shard.ended.unsqueeze(0), ended[:-1]]), out=rollout.valid)
    shard.ended.copy_(ended[-1])
    discounted = _episode_returns(shard, rollout, ended)
    sums, means = [], []
    if agent.observation_moments is not None:
        features = rollout.observations[:-1].flatten(0, 1)[:, : agent.spaces.feature_size]
        sums.append(agent.observation_moments.sums(features, rollout.valid.flatten()))
        means.append(agent.observation_moments.mean)
    if agent.return_moments is not None:
        sums.append(agent.return_moments.sums(discounted.reshape(-1, 1), rollout.valid.flatten()))
        means.append(agent.return_moments.mean)
    if sums:
        rollout.moments.copy_(torch.cat(sums))
        rollout.means.copy_(torch.cat(means))


def _episode_returns(shard: Shard, rollout: Rollout, ended: Tensor) -> Tensor:
    """Writes returns and lengths of the episodes that ended, and gives `[T, B]` float64: `G_t = γ G_{t-1} + r_t` within each
    episode, whose deviation scales the rewards.
    """
    steps, count = rollout.rewards.shape
    # what each step adds: reward, 1, reward; and how much of the sum up to it lives on
    sums = np.empty((steps, 3, count))
    sums[:, 0] = sums[:, 2] = rollout.rewards.numpy()
    sums[:, 1] = rollout.valid.numpy()
    keep = np.empty((steps, 3, count))
    np.logical_not(ended.numpy()[:, np.newaxis], out=keep, casting="unsafe")
    keep[:, 2] *= shard.gamma
    carried = shard.running.numpy()
    with np.errstate(all="ignore"):  # what is not finite is found in the loss, on all ranks at once
        for now, kept in zip(sums, keep, strict=True):
            now += carried
            np.multiply(now, kept, out=carried)
    over = torch.from_numpy(sums)
    rollout.episodes.copy_(torch.where(ended.unsqueeze(-1), over[:, :2].transpose(1, 2), torch.nan))
    return over[:, 2]
