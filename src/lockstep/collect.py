"""Collecting: one shard, T steps -> one rollout."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lockstep.agent import Agent
from lockstep.models.moments import Moments
from lockstep.randomness import stream
from lockstep.rollout import Rollout
from lockstep.state import check_state

if TYPE_CHECKING:
    from lockstep.envs.engine import Engine

__all__ = ["Shard", "collect"]


class Shard:
    """A group of environments that is never cut, and all that goes on in it from one rollout to the next."""

    def __init__(
        self, index: int, engine: "Engine", steps: int, count: int, agent: Agent, seed: int, gamma: float
    ) -> None:
        """`steps` and `count` are T and B. The environments begin their first episodes at once."""
        self.index = index
        self.engine = engine
        self.seed = seed
        self.gamma = gamma
        spaces = agent.spaces
        action_size = spaces.action_size if spaces.discrete_actions is None else None
        self.rollout = Rollout.empty(
            steps, count, spaces.observation_size, action_size, moments_width(agent), agent.dtype
        )
        self.ended = torch.zeros(count, dtype=torch.bool)
        """`[B]`: the last step ended an episode, so the next row is a reset row."""
        self.running = torch.zeros(3, count, dtype=torch.float64)
        """`[3, B]`: return, length and discounted return of the episode so far."""
        self._begin(engine.reset())

    def renew(self, iteration: int) -> None:
        """Starts new episodes if the engine can't be restored (the boundary rule): at every checkpoint, in every run."""
        if self.engine.renews:
            self.ended.zero_()
            self.running.zero_()
            self._begin(self.engine.renew(iteration))

    def state(self) -> dict[str, Tensor]:
        """All that exact resume needs, by name."""
        engine = {f"engine.{name}": torch.from_numpy(np.array(value)) for name, value in self.engine.state().items()}
        return {"ended": self.ended, "running": self.running, **engine}

    def restore(self, state: Mapping[str, Tensor], iteration: int) -> None:
        """Takes back the `state()` of iteration `iteration`. Raises ValueError if the environments do not come back the same."""
        if self.engine.renews:
            self.renew(iteration)
            return
        own = {"ended": self.ended, "running": self.running}
        check_state(own, {name: value for name, value in state.items() if name in own})
        self.ended.copy_(state["ended"])
        self.running.copy_(state["running"])
        engine = {
            name.removeprefix("engine."): value.numpy() for name, value in state.items() if name.startswith("engine.")
        }
        self._begin(self.engine.restore(engine))

    def _begin(self, observations: np.ndarray) -> None:
        # row T: `collect` begins with the observation that the last rollout ended with
        self.rollout.observations[-1].copy_(torch.from_numpy(np.ascontiguousarray(observations)))


def moments_width(agent: Agent) -> int:
    """Length of `Rollout.moments`."""
    kept = (agent.observation_moments, agent.return_moments)
    return sum(Moments.width(moments.mean.numel()) for moments in kept if moments is not None)


def collect(shard: Shard, agent: Agent, iteration: int) -> Rollout:
    """Plays T steps in each of the shard's environments. The returned rollout is overwritten by the next call."""
    _play(shard, agent, iteration)
    _finish(shard, agent)
    return shard.rollout


def _play(shard: Shard, agent: Agent, iteration: int) -> None:
    rollout, engine = shard.rollout, shard.engine
    steps, count = rollout.rewards.shape
    noise = torch.from_numpy(
        agent.distribution.noise(stream(shard.seed, "actions", shard.index, iteration), steps, count)
    )
    noise = noise.to(agent.dtype)
    rollout.observations[0].copy_(rollout.observations[-1])
    observations = rollout.observations.numpy()
    rewards, terminated, truncated = rollout.rewards.numpy(), rollout.terminated.numpy(), rollout.truncated.numpy()
    rows = rollout.observations.unbind(0)
    for t, (action, drawn) in enumerate(zip(rollout.actions.unbind(0), noise.unbind(0), strict=True)):
        action.copy_(agent.act(rows[t], drawn))
        observations[t + 1], rewards[t], terminated[t], truncated[t] = engine.step(agent.for_environment(action))


def _finish(shard: Shard, agent: Agent) -> None:
    """Everything that does not have to be known while stepping, for all rows at once."""
    rollout = shard.rollout
    ended = rollout.terminated | rollout.truncated
    torch.logical_not(torch.cat([shard.ended.unsqueeze(0), ended[:-1]]), out=rollout.valid)
    shard.ended.copy_(ended[-1])
    values, log_probs = agent.judge(rollout.observations, rollout.actions)
    rollout.values.copy_(values)
    rollout.log_probs.copy_(log_probs)
    _count_episodes(shard, ended)
    sums = []
    if agent.observation_moments is not None:
        sums.append(agent.observation_moments.sums(rollout.observations[:-1].flatten(0, 1), rollout.valid.flatten()))
    if agent.return_moments is not None:
        sums.append(agent.return_moments.sums(_discounted(shard, ended).view(-1, 1), rollout.valid.flatten()))
    if sums:
        rollout.moments.copy_(torch.cat(sums))


def _count_episodes(shard: Shard, ended: Tensor) -> None:
    """Returns and lengths of the episodes that ended, from sums over the whole rollout instead of counters per step."""
    rollout, running = shard.rollout, shard.running
    sums = torch.stack([rollout.rewards.to(torch.float64), rollout.valid.to(torch.float64)], -1).cumsum(0)  # [T, B, 2]
    sums += running[:2].T
    rollout.episodes.fill_(torch.nan)
    at = ended.nonzero()
    for t, b in at[at[:, 1].argsort(stable=True)].tolist():  # each environment's ends in order of time
        rollout.episodes[t, b] = sums[t, b]
        sums[t + 1 :, b] -= sums[t, b].clone()
        sums[t, b] = 0  # so that an episode that ends in the last row leaves nothing running
    running[:2] = sums[-1].T


def _discounted(shard: Shard, ended: Tensor) -> Tensor:
    """`[T, B]` float64: `G_t = γ G_{t-1} + r_t` within each episode, whose deviation scales the rewards."""
    rewards = shard.rollout.rewards.numpy().astype(np.float64)
    carried = shard.running[2].numpy()
    keep = np.where(ended.numpy(), 0.0, shard.gamma)
    with np.errstate(all="ignore"):  # what is not finite is found in the loss, on all ranks at once
        for t in range(len(rewards)):
            rewards[t] += carried
            np.multiply(rewards[t], keep[t], out=carried)
    return torch.from_numpy(rewards)
