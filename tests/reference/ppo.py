"""PPO in one file, in float64: written to be read, and to be compared with.

Nothing here comes from lockstep except its named random streams, so the two can agree only if both do what the paper says
(Schulman et al. 2017, arXiv:1707.06347; advantages: Schulman et al. 2016, arXiv:1506.02438). Speed is no aim.

One iteration: play T steps in B environments -> advantages -> E epochs of M minibatches, each one step of Adam.
Episode ends: after `terminated` or `truncated` the environment is reset on its next step. That row, the reset row, starts
from the last observation of the old episode and leads to the first of the new one. It was nobody's decision, so `mask` is 0
there and it counts nowhere.
"""

import itertools
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from lockstep.randomness import EnvironmentSeeds, stream


@dataclass
class Settings:
    env_id: str
    seed: int
    envs: int
    steps: int
    iterations: int
    epochs: int
    minibatches: int
    learning_rate: float  # falls in a straight line to 0 at the end of the run
    max_episode_steps: int | None = None
    hidden: tuple[int, ...] = (16, 16)
    shared: bool = False
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_clip: float | None = None
    value_coefficient: float = 0.5
    entropy: float = 0.0
    max_grad_norm: float = 0.5
    normalize_observations: bool = False
    normalize_rewards: bool = False


class ActorCritic(nn.Module):
    def __init__(
        self, observations: int, actions: int, continuous: bool, hidden: tuple[int, ...], shared: bool
    ) -> None:
        super().__init__()

        def body() -> nn.Sequential:
            widths = [observations, *hidden]
            layers = [[nn.Linear(a, b), nn.Tanh()] for a, b in itertools.pairwise(widths)]
            return nn.Sequential(*(module for layer in layers for module in layer))

        self.actor_body = body()
        self.critic_body = self.actor_body if shared else body()
        self.actor_head = nn.Linear(hidden[-1], actions)
        self.critic_head = nn.Linear(hidden[-1], 1)
        self.log_std = nn.Parameter(torch.zeros(actions)) if continuous else None
        self.double()

    def distribution(self, observations: torch.Tensor) -> Distribution:
        outputs = self.actor_head(self.actor_body(observations))
        if self.log_std is None:
            return Categorical(logits=outputs)
        return Independent(Normal(outputs, self.log_std.exp().expand_as(outputs)), 1)

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        return self.critic_head(self.critic_body(observations)).squeeze(-1)


class RunningMoments:
    """Mean and variance of all rows seen so far (Chan, Golub & LeVeque 1979: merging two samples)."""

    def __init__(self, size: int) -> None:
        self.count, self.mean, self.variance = 0, np.zeros(size), np.ones(size)

    def merge(self, rows: np.ndarray) -> None:
        count, mean, variance = len(rows), rows.mean(0), rows.var(0)
        total, distance = self.count + count, mean - self.mean
        between = distance**2 * self.count * count / total
        self.variance = (self.variance * self.count + variance * count + between) / total
        self.mean = self.mean + distance * count / total
        self.count = total

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(self.variance + 1e-8) if self.count else np.ones_like(self.mean)

    def normalize(self, rows: np.ndarray) -> np.ndarray:
        return np.clip((rows - self.mean) / self.std, -10, 10)


class Environments:
    """B copies. Episode e of copy i begins with a seed of its own."""

    def __init__(self, settings: Settings) -> None:
        limit = {} if settings.max_episode_steps is None else {"max_episode_steps": settings.max_episode_steps}
        self.copies = [gym.make(settings.env_id, **limit) for _ in range(settings.envs)]
        self.seeds = EnvironmentSeeds(settings.seed, "episode", settings.envs)
        self.episode = [0] * settings.envs
        self.ended = [False] * settings.envs
        self.observations = np.stack([self.reset(i) for i in range(settings.envs)])

    def reset(self, i: int) -> np.ndarray:
        observation, _ = self.copies[i].reset(seed=self.seeds(i, self.episode[i]))
        self.episode[i] += 1
        return np.asarray(observation, dtype=np.float64)

    def step(self, i: int, action: np.ndarray) -> tuple[float, bool, bool, bool]:
        """Reward, terminated, truncated, and whether this was a reset row."""
        if self.ended[i]:
            self.observations[i], self.ended[i] = self.reset(i), False
            return 0.0, False, False, True
        space = self.copies[i].action_space
        if isinstance(space, gym.spaces.Box):
            action = np.clip(action, space.low, space.high).astype(space.dtype)
        observation, reward, terminated, truncated, _ = self.copies[i].step(action)
        self.observations[i], self.ended[i] = observation, terminated or truncated
        return float(reward), terminated, truncated, False


def advantages_of(
    s: Settings,
    rewards: np.ndarray,
    values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    mask: np.ndarray,
) -> np.ndarray:
    """Generalized advantage estimation, one environment after the other, backwards in time."""
    advantages = np.zeros((s.steps, s.envs))
    for i in range(s.envs):
        following = 0.0
        for t in reversed(range(s.steps)):
            next_value = 0.0 if terminated[t, i] else values[t + 1, i]  # nothing follows a terminal state
            delta = rewards[t, i] + s.gamma * next_value - values[t, i]
            if terminated[t, i] or truncated[t, i]:
                following = 0.0  # what follows belongs to another episode
            following = delta + s.gamma * s.gae_lambda * following
            if mask[t, i]:
                advantages[t, i] = following
    return advantages


def train(settings: Settings, weights: dict[str, torch.Tensor]) -> ActorCritic:
    """Trains from the given first weights and returns the network."""
    s = settings
    environments = Environments(s)
    observation_size = environments.observations.shape[1]
    space = environments.copies[0].action_space
    continuous = isinstance(space, gym.spaces.Box)
    action_size = space.shape[0] if continuous else int(space.n)
    network = ActorCritic(observation_size, action_size, continuous, s.hidden, s.shared)
    network.load_state_dict(weights)
    optimizer = torch.optim.Adam(network.parameters(), lr=s.learning_rate, eps=1e-5)
    observation_moments, return_moments = RunningMoments(observation_size), RunningMoments(1)
    discounted_return = np.zeros(s.envs)

    def seen(raw: np.ndarray) -> torch.Tensor:
        """Observations as the network sees them; the moments do not change within an iteration."""
        return torch.from_numpy(observation_moments.normalize(raw) if s.normalize_observations else raw)

    for iteration in range(1, s.iterations + 1):
        for group in optimizer.param_groups:
            group["lr"] = s.learning_rate * (1 - (iteration - 1) / s.iterations)

        # Play.
        observations = np.zeros((s.steps + 1, s.envs, observation_size))
        actions = np.zeros((s.steps, s.envs, action_size) if continuous else (s.steps, s.envs))
        rewards, returns, mask = np.zeros((s.steps, s.envs)), np.zeros((s.steps, s.envs)), np.ones((s.steps, s.envs))
        terminated, truncated = np.zeros((2, s.steps, s.envs), dtype=bool)
        draw, shape = stream(s.seed, "actions", 0, iteration), (s.steps, s.envs, action_size)
        noise = torch.from_numpy(draw.standard_normal(shape) if continuous else draw.gumbel(size=shape))
        for t in range(s.steps):
            observations[t] = environments.observations
            with torch.no_grad():
                distribution = network.distribution(seen(observations[t]))
            if continuous:
                actions[t] = (distribution.mean + distribution.stddev * noise[t]).numpy()
            else:  # the largest of log-probability + Gumbel noise is a draw
                actions[t] = (distribution.logits + noise[t]).argmax(-1).numpy()
            for i in range(s.envs):
                action = actions[t, i] if continuous else int(actions[t, i])
                rewards[t, i], terminated[t, i], truncated[t, i], is_reset = environments.step(i, action)
                mask[t, i] = not is_reset
                discounted_return[i] = s.gamma * discounted_return[i] + rewards[t, i]
                returns[t, i] = discounted_return[i]
                if terminated[t, i] or truncated[t, i]:
                    discounted_return[i] = 0.0
        observations[s.steps] = environments.observations

        # Judge, with the weights that played.
        inputs, taken = seen(observations), torch.from_numpy(actions)
        with torch.no_grad():
            values = network.value(inputs).numpy()
            old_log_probs = network.distribution(inputs[:-1]).log_prob(taken)
        if s.normalize_rewards:
            return_moments.merge(returns[mask == 1].reshape(-1, 1))
            rewards = np.clip(rewards / return_moments.std, -10, 10)
        advantages = advantages_of(s, rewards, values, terminated, truncated, mask)
        targets = advantages + values[:-1]

        # Learn: everything as rows, time first.
        flat_inputs, flat_taken = inputs[:-1].flatten(0, 1), taken.flatten(0, 1)
        flat_log_probs, flat_mask = old_log_probs.flatten(), torch.from_numpy(mask).flatten()
        flat_advantages, flat_targets = torch.from_numpy(advantages).flatten(), torch.from_numpy(targets).flatten()
        flat_values = torch.from_numpy(values[:-1]).flatten()
        shuffle = stream(s.seed, "minibatches", 0, iteration)
        for _ in range(s.epochs):
            permutation = torch.from_numpy(shuffle.permutation(s.steps * s.envs))
            for rows in permutation.split(s.steps * s.envs // s.minibatches):
                weight = flat_mask[rows]
                count = weight.sum()
                advantage = flat_advantages[rows]
                mean = (advantage * weight).sum() / count
                deviation = (((advantage - mean) ** 2 * weight).sum() / count).sqrt()
                advantage = (advantage - mean) / (deviation + 1e-8)

                distribution = network.distribution(flat_inputs[rows])
                ratio = (distribution.log_prob(flat_taken[rows]) - flat_log_probs[rows]).exp()
                clipped = ratio.clamp(1 - s.clip, 1 + s.clip)
                policy_loss = -torch.min(ratio * advantage, clipped * advantage)

                value, old_value, target = network.value(flat_inputs[rows]), flat_values[rows], flat_targets[rows]
                value_loss = 0.5 * (value - target) ** 2
                if s.value_clip is not None:
                    near = old_value + (value - old_value).clamp(-s.value_clip, s.value_clip)
                    value_loss = torch.max(value_loss, 0.5 * (near - target) ** 2)

                loss = policy_loss + s.value_coefficient * value_loss - s.entropy * distribution.entropy()
                optimizer.zero_grad()
                ((loss * weight).sum() / count).backward()
                nn.utils.clip_grad_norm_(network.parameters(), s.max_grad_norm)
                optimizer.step()

        if s.normalize_observations:
            observation_moments.merge(observations[:-1][mask == 1])
    return network
