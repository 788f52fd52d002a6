"""Collecting rollouts: T steps in the environments of each shard."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.algorithm.acting import ActingState
from lockstep.algorithm.agent import Agent
from lockstep.algorithm.preemption import Preemption
from lockstep.compiling.recurrence import recur
from lockstep.envs.engine import Engine
from lockstep.models.state import check_state
from lockstep.processes.heartbeat import beat
from lockstep.randomness import stream
from lockstep.rollout import Rollout, Sizes

__all__ = ["Shard", "collect", "rollout_sizes"]

_PLAYED = (
    "observations",
    "pixels",
    "states",
    "actions",
    "rewards",
    "terminated",
    "truncated",
    "values",
    "log_probs",
    "infos",
)
"""Tensors of a rollout that `_play` fills."""


class Shard:
    """A group of environments that always stays together, with its state from one rollout to the next."""

    def __init__(self, index: int, engine: Engine, rollouts: Sequence[Rollout], seed: int, gamma: float) -> None:
        """Reset the environments of `engine`. `rollouts` are buffers that are filled in turn, one per iteration."""
        self.index = index
        self.engine = engine
        self.seed = seed
        self.gamma = gamma
        self._rollouts = rollouts
        observations, rewards = rollouts[0].observations, rollouts[0].rewards
        self.observations = torch.zeros_like(observations[0])
        """`[B, O]`: the first observations of the next rollout."""
        self.pixels = torch.zeros_like(rollouts[0].pixels[0])
        """`[B, P]`: their images."""
        self.memory = torch.zeros_like(rollouts[0].states[0])
        """`[B, S]`: the policy's state in the current episodes."""
        self.ended = torch.zeros(rewards.shape[1], dtype=torch.bool)
        """`[B]`: the last step ended an episode, so the next row is a reset row."""
        self.running = torch.zeros(3, rewards.shape[1], dtype=torch.float64)
        """`[3, B]`: return, length and discounted return of the current episodes."""
        self._faults: list[tuple[int, int]] = []
        """Step and environment of the faults since the last rollout was finished; step -1 is before the first step."""
        self._set_observations(engine.reset())
        self.ended.copy_(torch.from_numpy(engine.absent))
        self._drop_episodes_of_failed_environments()

    def rollout(self, iteration: int) -> Rollout:
        """Return the buffer for the rollout of an iteration."""
        return self._rollouts[iteration % len(self._rollouts)]

    def restart_episodes(self, iteration: int) -> None:
        """Start new episodes if the engine can't be restored. Every run does so at every checkpoint, so that resuming is exact."""
        if self.engine.restarts_episodes:
            self.ended.zero_()
            self.running.zero_()
            self.memory.zero_()
            self._set_observations(self.engine.restart_episodes(iteration))

    def state(self) -> dict[str, Tensor]:
        """State for an exact resume, by name."""
        engine = {f"engine.{name}": torch.from_numpy(np.array(value)) for name, value in self.engine.state().items()}
        return {**self._episode_state(), **engine}

    def _episode_state(self) -> dict[str, Tensor]:
        state = {"ended": self.ended, "running": self.running}
        return state | {"memory": self.memory} if self.memory.numel() else state

    def restore(self, state: Mapping[str, Tensor], iteration: int) -> None:
        """Restore the `state()` of an iteration. Raises ValueError if the environments do not reach the same observations."""
        if self.engine.restarts_episodes:
            self.restart_episodes(iteration)
            return
        expected = self._episode_state()
        check_state(expected, {name: value for name, value in state.items() if name in expected})
        for name, value in expected.items():
            value.copy_(state[name])
        engine = {
            name.removeprefix("engine."): value.numpy() for name, value in state.items() if name.startswith("engine.")
        }
        self._set_observations(self.engine.restore(engine))
        self._drop_episodes_of_failed_environments()

    def _drop_episodes_of_failed_environments(self) -> None:
        """Drop the current episodes of environments that failed during the reset or the restore of the engine: their first row is a reset row."""
        for index in self.engine.lost:
            self.ended[index] = True
            self.running[:, index] = 0
            self.memory[index] = 0
        self.note_faults(-1)

    def note_faults(self, step: int) -> None:
        """Remember the environments that failed in a step of the current rollout."""
        self._faults += [(step, index) for index in self.engine.lost]

    def invalidate_faults(self, rollout: Rollout) -> None:
        """Mark all rows of the episodes that ended with a fault as not valid, and count the faults."""
        rollout.faults.zero_()
        for step, index in self._faults:
            rollout.faults[index] += 1
            earlier = rollout.valid[: step + 1, index]
            resets = (~earlier).nonzero().flatten()
            earlier[int(resets[-1]) + 1 if len(resets) else 0 :] = False
        self._faults.clear()

    def _set_observations(self, observations: np.ndarray) -> None:
        self.observations.copy_(torch.from_numpy(np.ascontiguousarray(observations)))
        if self.pixels.numel():
            self.pixels.copy_(torch.from_numpy(self.engine.pixels))


def rollout_sizes(agent: Agent, steps: int, count: int, sequence: int = 1, infos: int = 0) -> Sizes:
    """Return the sizes of the rollouts that `agent` collects: `steps` T, `count` B, `sequence` L, `infos` K."""
    spaces, statistics = agent.spaces, (agent.observation_statistics, agent.return_statistics)
    action_size = spaces.action_size if spaces.discrete_actions is None else None
    sizes = tuple(running.mean.numel() for running in statistics if running is not None)
    rows, pixels, state = spaces.observation_size, spaces.pixel_count, agent.state_size
    return Sizes(steps, count, rows, action_size, sizes, agent.dtype, pixels, state, sequence, infos)


def collect(
    shards: Sequence[Shard], agent: Agent, iteration: int, fused: bool = False, preemption: Preemption | None = None
) -> list[Rollout]:
    """Take T steps in each environment of each shard, fewer if `preemption` ends the rollouts early, and return a rollout per shard.

    Shards are stepped one after the other or, `fused`, together, with one forward pass of the policy per step; the results are equal up
    to rounding.
    """
    rollouts = [shard.rollout(iteration) for shard in shards]
    each = [slice(index, index + 1) for index in range(len(shards))]
    for group in [slice(None)] if fused and len(shards) > 1 else each:
        wide = rollouts[group][0] if len(rollouts[group]) == 1 else _wide_rollout(rollouts[group])
        _play(shards[group], wide, agent, iteration, preemption)
        _split_columns(wide, rollouts[group])
    if preemption is not None and shards:
        preemption.finish(iteration, len(shards))
    for shard, rollout in zip(shards, rollouts, strict=True):
        _finish(shard, rollout, agent)
    return rollouts


def _play(shards: Sequence[Shard], wide: Rollout, agent: Agent, iteration: int, preemption: Preemption | None) -> None:
    """Fill the rollout `wide`, which holds the environments of all these shards side by side."""
    steps, count = wide.rewards.shape[0], wide.rewards.shape[1] // len(shards)
    shard_noise = [
        agent.distribution.noise(stream(shard.seed, "actions", shard.index, iteration), steps, count)
        for shard in shards
    ]
    noise = shard_noise[0] if len(shards) == 1 else np.concatenate(shard_noise, 1)
    torch.cat([shard.observations for shard in shards], out=wide.observations[0])
    torch.cat([shard.pixels for shard in shards], out=wide.pixels[0])
    observations, pixels = wide.observations.numpy(), wide.pixels.numpy()
    rewards, terminated, truncated = wide.rewards.numpy(), wide.terminated.numpy(), wide.truncated.numpy()
    memory = _acting_state(shards, wide, agent)
    actor = agent.actor(noise, wide.actions.numpy(), memory)
    columns_of_shards = [(shard, slice(k * count, (k + 1) * count)) for k, shard in enumerate(shards)]
    engines = [(shard.engine, columns) for shard, columns in columns_of_shards]
    infos = wide.infos.numpy()
    image_engines, info_engines = engines if agent.spaces.images else [], engines if infos.size else []
    taken = steps
    for t in range(steps):
        if preemption is not None and preemption.is_due(iteration, t):
            taken = t
            break
        beat()
        actions = actor.act(t, observations[t], pixels[t])
        for shard, columns in columns_of_shards:
            results = shard.engine.step(actions[columns])
            observations[t + 1, columns], rewards[t, columns], terminated[t, columns], truncated[t, columns] = results
            if shard.engine.lost:
                shard.note_faults(t)
        for engine, columns in image_engines:
            pixels[t + 1, columns] = engine.pixels
        for engine, columns in info_engines:
            infos[t, columns] = engine.infos
    wide.log_probs[:taken] = actor.log_probs()[:taken]
    wide.taken[0] = taken
    if taken < steps:
        _fill_rest(wide, taken)
    values = actor.values(wide.observations, wide.pixels)
    wide.values[:taken], wide.values[taken:] = values[:taken], values[-1]
    if memory is not None:
        for shard, state in zip(shards, memory.state.split(count), strict=True):
            shard.memory.copy_(state)


def _fill_rest(wide: Rollout, taken: int) -> None:
    """Fill the rows of the steps that were not taken. The last observation is the first of the next rollout."""
    wide.observations[taken + 1 :] = wide.observations[taken]
    wide.pixels[-1] = wide.pixels[taken]
    wide.states[-(-taken // wide.sequence_length) :] = 0
    for rows in (wide.actions, wide.rewards, wide.terminated, wide.truncated, wide.log_probs):
        rows[taken:] = 0
    wide.infos[taken:] = torch.nan


def _acting_state(shards: Sequence[Shard], wide: Rollout, agent: Agent) -> ActingState | None:
    """Return the policy's state at the start of `wide`; None for a policy without memory."""
    if not agent.state_size:
        return None
    state = torch.cat([shard.memory for shard in shards]).to(agent.device)
    ended = torch.cat([shard.ended for shard in shards]).numpy()
    return ActingState(state, wide.states, ended, wide.terminated.numpy(), wide.truncated.numpy())


def _wide_rollout(rollouts: Sequence[Rollout]) -> Rollout:
    """Allocate a rollout with as many environments as all of these."""
    first = rollouts[0]
    action_size = None if first.actions.dim() == 2 else first.actions.shape[2]
    steps, count = first.rewards.shape
    parts = first.observations, first.pixels, first.states, first.infos
    rows, pixels, state, infos = (tensor.shape[2] for tensor in parts)
    dtype, count = first.observations.dtype, count * len(rollouts)
    return Rollout.empty(Sizes(steps, count, rows, action_size, (), dtype, pixels, state, first.sequence_length, infos))


def _split_columns(wide: Rollout, rollouts: Sequence[Rollout]) -> None:
    if rollouts[0] is wide:
        return
    count = rollouts[0].rewards.shape[1]
    for name in _PLAYED:
        for rollout, columns in zip(rollouts, getattr(wide, name).split(count, 1), strict=True):
            getattr(rollout, name).copy_(columns)
    for rollout in rollouts:
        rollout.taken.copy_(wide.taken)


def _finish(shard: Shard, rollout: Rollout, agent: Agent) -> None:
    """Compute for all rows at once what is not needed while stepping: valid rows, episode returns, sums for the running statistics."""
    shard.observations.copy_(rollout.observations[-1])
    shard.pixels.copy_(rollout.pixels[-1])
    ended, taken = rollout.terminated | rollout.truncated, int(rollout.taken)
    torch.logical_not(torch.cat([shard.ended.unsqueeze(0), ended[:-1]]), out=rollout.valid)
    rollout.valid[taken:] = False
    shard.ended.copy_(ended[taken - 1])
    shard.invalidate_faults(rollout)
    discounted = _episode_returns(shard, rollout, ended, taken)
    sums, means = [], []
    if agent.observation_statistics is not None:
        features = rollout.observations[:-1].flatten(0, 1)[:, : agent.spaces.feature_size]
        sums.append(agent.observation_statistics.sums(features, rollout.valid.flatten()))
        means.append(agent.observation_statistics.mean)
    if agent.return_statistics is not None:
        sums.append(agent.return_statistics.sums(discounted.reshape(-1, 1), rollout.valid[:taken].flatten()))
        means.append(agent.return_statistics.mean)
    if sums:
        rollout.statistics_sums.copy_(torch.cat(sums))
        rollout.means.copy_(torch.cat(means))


def _episode_returns(shard: Shard, rollout: Rollout, ended: Tensor, taken: int) -> Tensor:
    """Write returns and lengths of the episodes that ended; those whose return is not finite are left out.

    Returns the discounted returns `G_t = γ G_{t-1} + r_t` within each episode, `[taken, B]` float64, whose standard deviation scales rewards.
    """
    rewards, valid, ended = rollout.rewards[:taken], rollout.valid[:taken], ended[:taken]
    steps, count = rewards.shape
    # the summands of each step: reward, 1, reward; and the factors of each sum after that step
    sums = np.empty((steps, 3, count))
    sums[:, 0] = sums[:, 2] = rewards.numpy()
    sums[:, 1] = valid.numpy()
    factors = np.empty((steps, 3, count))
    np.logical_not(ended.numpy()[:, np.newaxis], out=factors, casting="unsafe")
    factors[:, 2] *= shard.gamma
    running = shard.running.numpy()
    finite = bool(np.isfinite(sums).all() and np.isfinite(running).all())
    with np.errstate(all="ignore"):  # values that are not finite are reported by the update, on all ranks at once
        if finite:
            sums[0] += running
            recur(sums.reshape(steps, 3 * count), factors[:-1].reshape(steps - 1, 3 * count))
            np.multiply(sums[-1], factors[-1], out=running)
        else:
            for step_sums, step_factors in zip(sums, factors, strict=True):
                step_sums += running
                np.multiply(step_sums, step_factors, out=running)
                _drop_non_finite(running, step_factors)
    totals = torch.from_numpy(sums)
    counted = ended & valid & totals[:, 0].isfinite()
    rollout.episodes[:taken] = torch.where(counted.unsqueeze(-1), totals[:, :2].transpose(1, 2), torch.nan)
    rollout.episodes[taken:] = torch.nan
    return totals[:, 2]


def _drop_non_finite(running: NDArray[np.float64], factors: NDArray[np.float64]) -> None:
    """Reset the running sums of episodes that have ended, and discounted returns that are not finite: 0 times infinity is NaN.

    So a reward that is not finite spoils the return of its own episode, and a single row of the statistics of discounted returns.
    """
    running[factors == 0] = 0
    running[2, ~np.isfinite(running[2])] = 0
