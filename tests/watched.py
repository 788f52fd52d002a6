"""Recorded updates on small random rollouts: reductions, gradients and optimizer steps."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.policy_runner import PolicyRunner
from lockstep.algorithm.prepare import VALUE_FIT_SUMS
from lockstep.algorithm.update import Update
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces
from lockstep.group.solo import Solo
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig
from lockstep.randomness import stream
from lockstep.rollout import Rollout, Sizes

SHARDS, STEPS, COUNT, SIZE = 2, 12, 2, 3
ROWS = STEPS * COUNT
NOTHING = np.zeros(0, dtype=np.float32)
DISCRETE = Spaces(SIZE, (4,), NOTHING, NOTHING)
CONTINUOUS = Spaces(SIZE, (), np.float32([-1, -1]), np.float32([1, 1]))
SEED, ITERATION = 1, 3
PLAIN = CuriosityConfig()


class RecordingGroup(Solo):
    """Group of one rank that records its reductions."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: list[tuple[str, Tensor]] = []

    def reduce(self, parts: Tensor, phase: str) -> Tensor:
        total = super().reduce(parts, phase)
        self.totals.append((phase, total.clone()))
        return total


class Watch:
    """Update that records each step of Adam: gradient, learning rates, and the weights after the step."""

    def __init__(self, agent: Agent, config: PPOConfig, **options: bool) -> None:
        self.agent, self.group = agent, RecordingGroup()
        self.update = Update(agent, config, self.group, range(SHARDS), SEED, UpdateOptions(**options))
        self.gradients: list[Tensor] = []
        self.rates: list[Mapping[str, float]] = []
        self.weights: list[Tensor] = []
        self._limit = config.max_grad_norm
        self._propose, self._accept = self.update.adam.propose, self.update.adam.accept
        self.update.adam.propose, self.update.adam.accept = self._record_proposal, self._record_step

    def _record_proposal(self, total: Tensor, count: float, rates: Mapping[str, float]) -> list[float]:
        means = self._propose(total, count, rates)
        clipped = 1.0 if self._limit is None else min(1.0, self._limit / (means[-1] + 1e-6))
        self._proposed = (total[: len(self.agent.flat.buffer)] / count * clipped, dict(rates))
        return means

    def _record_step(self) -> None:
        self._accept()
        self.gradients.append(self._proposed[0])
        self.rates.append(self._proposed[1])
        self.weights.append(self.agent.flat.buffer.clone())

    def __call__(
        self, rollouts: list[Rollout] | None = None, iteration: int = ITERATION, progress: float = 0.0
    ) -> dict[str, float]:
        """Train on `rollouts`, or on random rollouts of the current agent if None."""
        return self.update(rollouts_of(self.agent) if rollouts is None else rollouts, iteration, progress)

    def divergences(self) -> list[float]:
        """Return the KL divergence of every minibatch, from the reduced totals: weights, then policy_loss, value_loss, entropy, KL, …."""
        sums, _ = [total for phase, total in self.group.totals if phase == "advantages"]
        counts = sums[VALUE_FIT_SUMS:].view(-1, 2)[:, 0]
        found = [total for phase, total in self.group.totals if phase == "gradients"]
        return [(total[-2] / count).item() for total, count in zip(found, counts, strict=False)]


def agent_of(
    spaces: Spaces = DISCRETE,
    shared: bool = False,
    normalize: bool = False,
    seed: int = 1,
    device: str = "cpu",
    curiosity: CuriosityConfig = PLAIN,
    dtype: torch.dtype = torch.float64,
    encoder: str = "auto",
) -> Agent:
    config = PolicyConfig(hidden=(8,), encoder=encoder, shared=shared, normalize_observations=normalize)
    return Agent(spaces, config, normalize, seed, dtype, torch.device(device), curiosity=curiosity)


def watch_of(**settings: object) -> Watch:
    before = {"learning_rate": 3e-4, "epochs": 4, "minibatches": 4, "recompute_advantages": False}
    return Watch(agent_of(), PPOConfig(**{**before, **settings}))


def normal(name: str, *shape: int) -> Tensor:
    return torch.from_numpy(stream(SEED, name).standard_normal(shape))


def rollouts_of(agent: Agent, shards: int = SHARDS) -> list[Rollout]:
    """Return rollouts of this agent with random observations and rewards, terminated and truncated episodes, and reset rows."""
    rollouts = []
    sizes = () if agent.return_statistics is None else (SIZE, 1)
    for shard in range(shards):
        action_size = None if agent.spaces.discrete_actions else agent.spaces.action_size
        rollout = Rollout.empty(Sizes(STEPS, COUNT, SIZE, action_size, sizes, agent.dtype))
        rollout.observations[:] = normal(f"observations {shard}", STEPS + 1, COUNT, SIZE)
        rollout.rewards[:] = normal(f"rewards {shard}", STEPS, COUNT)
        rollout.terminated[3, 0] = rollout.truncated[6, 1] = rollout.terminated[STEPS - 1, 1] = True
        if shard == 1:
            rollout.truncated[8, 0] = True
        ended = rollout.terminated | rollout.truncated
        rollout.valid[1:] = ~ended[:-1]
        rollout.valid[0, shard % COUNT] = False  # its episode ended in the rollout before
        rollout.rewards[~rollout.valid] = 0
        noise = agent.distribution.noise(stream(SEED, "noise", shard), STEPS, COUNT)
        act = agent.actor(noise, rollout.actions.numpy()).act
        for t in range(STEPS):
            act(t, rollout.observations[t].numpy())
        values, log_probs, _ = agent.evaluate(rollout)
        rollout.values.copy_(values)
        rollout.log_probs.copy_(log_probs)
        if agent.return_statistics is not None and agent.observation_statistics is not None:
            valid = rollout.valid.flatten()
            observation_sums = agent.observation_statistics.sums(rollout.observations[:-1].flatten(0, 1), valid)
            rollout.statistics_sums.copy_(
                torch.cat([observation_sums, agent.return_statistics.sums(rollout.rewards.view(-1, 1), valid)])
            )
        rollouts.append(rollout)
    return rollouts


def evaluate_rows(agent: Agent, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return values and log-probabilities for observations and actions."""
    steps, count, size = observations.shape[0] - 1, *observations.shape[1:]
    rollout = Rollout.empty(Sizes(steps, count, size, None, (), observations.dtype))
    rollout.observations, rollout.actions = observations, actions
    return agent.evaluate(rollout)[:2]


def choose_actions(agent: Agent, rows: np.ndarray, generator: np.random.Generator | None = None) -> np.ndarray:
    """Return actions for the environment: the most probable ones, or sampled ones with `generator`."""
    return PolicyRunner(agent, len(rows), generator).act(rows)


def perturb(agent: Agent, distance: float = 0.1) -> None:
    """Perturb the weights after collecting, so that ratios differ from 1 and some of them are clipped."""
    agent.flat.buffer += distance * normal("move", len(agent.flat.buffer)).to(agent.device)
