"""PPO in one file, in float64: a reference to read, and to compare with.

    python ppo_in_one_file.py

It shares nothing with lockstep except named random streams, so that the two agree only if both implement the papers (PPO: Schulman et
al. 2017, arXiv:1707.06347; advantages: Schulman et al. 2016, arXiv:1506.02438). A test compares their weights. It is not fast.

One iteration: collect T steps in B environments, compute advantages, train E epochs of M minibatches, each one step of Adam.

Ends of episodes: after `terminated` or `truncated` the environment is reset by its next step. That row, the reset row, starts from the
last observation of the old episode and leads to the first observation of the new one. Its action has no effect, so `mask` is 0 and the
row is ignored everywhere.
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
    learning_rate: float  # decreases linearly to 0 at the end of the run
    learning_rate_kl: float | None = None  # KL divergence of an update, above twice which the learning rate is lowered
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
    recompute_advantages: bool = False


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


class RunningStatistics:
    """Mean and variance of all rows so far (Chan, Golub & LeVeque 1979: merging two samples)."""

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


@dataclass
class Rollout:
    """T steps in B environments. Row t is the observation, the action taken on it, and the environment's answer."""

    observations: np.ndarray  # [T + 1, B, O]
    actions: np.ndarray  # [T, B] or [T, B, A]
    rewards: np.ndarray  # [T, B]
    returns: np.ndarray  # [T, B], discounted returns so far, whose deviation scales rewards
    terminated: np.ndarray  # [T, B] bool
    truncated: np.ndarray  # [T, B] bool
    mask: np.ndarray  # [T, B], 0 for reset rows


class Environments:
    """B environments. Every episode of every environment has its own seed."""

    def __init__(self, settings: Settings) -> None:
        limit = {} if settings.max_episode_steps is None else {"max_episode_steps": settings.max_episode_steps}
        self.copies = [gym.make(settings.env_id, **limit) for _ in range(settings.envs)]
        self.seeds = EnvironmentSeeds(settings.seed, "episode", settings.envs)
        self.episode = [0] * settings.envs
        self.ended = [False] * settings.envs
        self.discounted_return = np.zeros(settings.envs)
        self.observations = np.stack([self.reset(i) for i in range(settings.envs)])

    def reset(self, i: int) -> np.ndarray:
        observation, _ = self.copies[i].reset(seed=self.seeds(i, self.episode[i]))
        self.episode[i] += 1
        return np.asarray(observation, dtype=np.float64)

    def step(self, i: int, action: np.ndarray) -> tuple[float, bool, bool, bool]:
        """Return reward, terminated, truncated, and True for a reset row."""
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
    """Compute generalized advantage estimates, one environment after the other, backwards in time."""
    advantages = np.zeros((s.steps, s.envs))
    for i in range(s.envs):
        following = 0.0
        for t in reversed(range(s.steps)):
            next_value = 0.0 if terminated[t, i] else values[t + 1, i]  # the value of a terminal state is 0
            delta = rewards[t, i] + s.gamma * next_value - values[t, i]
            if terminated[t, i] or truncated[t, i]:
                following = 0.0  # the next row belongs to another episode
            following = delta + s.gamma * s.gae_lambda * following
            if mask[t, i]:
                advantages[t, i] = following
    return advantages


class Trainer:
    """The network, its optimizer, the running statistics and the environments."""

    def __init__(self, settings: Settings, weights: dict[str, torch.Tensor] | None = None) -> None:
        self.settings = s = settings
        self.environments = Environments(s)
        self.observation_size = self.environments.observations.shape[1]
        space = self.environments.copies[0].action_space
        self.continuous = isinstance(space, gym.spaces.Box)
        self.action_size = space.shape[0] if self.continuous else int(space.n)
        self.network = ActorCritic(self.observation_size, self.action_size, self.continuous, s.hidden, s.shared)
        if weights is not None:
            self.network.load_state_dict(weights)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=s.learning_rate, eps=1e-5)
        self.rate_factor = 1.0
        self.observation_statistics = RunningStatistics(self.observation_size)
        self.return_statistics = RunningStatistics(1)

    def iterate(self, iteration: int) -> Rollout:
        """Run one iteration, counted from 1."""
        s = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = s.learning_rate * (1 - (iteration - 1) / s.iterations) * self.rate_factor
        rollout = self.collect(iteration)
        self.adapt_rate(self.update(rollout, iteration))
        if s.normalize_observations:
            self.observation_statistics.merge(rollout.observations[:-1][rollout.mask == 1])
        return rollout

    def normalized(self, observations: np.ndarray) -> torch.Tensor:
        """Return the inputs of the network. The statistics do not change within an iteration."""
        if self.settings.normalize_observations:
            observations = self.observation_statistics.normalize(observations)
        return torch.from_numpy(observations)

    def collect(self, iteration: int) -> Rollout:
        """Take T steps in every environment."""
        s, environments = self.settings, self.environments
        flags, action_shape = (s.steps, s.envs), (self.action_size,) if self.continuous else ()
        rollout = Rollout(
            np.zeros((s.steps + 1, s.envs, self.observation_size)),
            np.zeros((*flags, *action_shape)),
            np.zeros(flags),
            np.zeros(flags),
            np.zeros(flags, dtype=bool),
            np.zeros(flags, dtype=bool),
            np.ones(flags),
        )
        generator, shape = stream(s.seed, "actions", 0, iteration), (*flags, self.action_size)
        noise = torch.from_numpy(generator.standard_normal(shape) if self.continuous else generator.gumbel(size=shape))
        for t in range(s.steps):
            rollout.observations[t] = environments.observations
            with torch.no_grad():
                distribution = self.network.distribution(self.normalized(rollout.observations[t]))
            if self.continuous:
                rollout.actions[t] = (distribution.mean + distribution.stddev * noise[t]).numpy()
            else:  # the maximum of log-probability + Gumbel noise is a sample
                rollout.actions[t] = (distribution.logits + noise[t]).argmax(-1).numpy()
            for i in range(s.envs):
                self.step(rollout, t, i)
        rollout.observations[s.steps] = environments.observations
        return rollout

    def step(self, rollout: Rollout, t: int, i: int) -> None:
        """Take step t in environment i."""
        action = rollout.actions[t, i] if self.continuous else int(rollout.actions[t, i])
        reward, terminated, truncated, is_reset = self.environments.step(i, action)
        rollout.rewards[t, i], rollout.terminated[t, i], rollout.truncated[t, i] = reward, terminated, truncated
        rollout.mask[t, i] = not is_reset
        running = self.environments.discounted_return
        running[i] = self.settings.gamma * running[i] + reward
        rollout.returns[t, i] = running[i]
        if terminated or truncated:
            running[i] = 0.0

    def adapt_rate(self, kl: float) -> None:
        """Lower the learning rate if the KL divergence is too large, and raise it again, at most up to its schedule, if it is small."""
        target = self.settings.learning_rate_kl
        if target is not None and kl > 2 * target:
            self.rate_factor = max(self.rate_factor / 1.5, 1e-3)
        elif target is not None and kl < target / 2:
            self.rate_factor = min(self.rate_factor * 1.5, 1.0)

    def update(self, rollout: Rollout, iteration: int) -> float:
        """Train E epochs of M minibatches on the rollout. Return the mean KL divergence in the last epoch."""
        s, mask, rewards = self.settings, rollout.mask, rollout.rewards
        inputs, actions = self.normalized(rollout.observations), torch.from_numpy(rollout.actions)
        with torch.no_grad():  # with the weights that collected
            old_values = self.network.value(inputs)
            log_probs = self.network.distribution(inputs[:-1]).log_prob(actions)
        if s.normalize_rewards:
            self.return_statistics.merge(rollout.returns[mask == 1].reshape(-1, 1))
            rewards = np.clip(rewards / self.return_statistics.std, -10, 10)
        generator = stream(s.seed, "minibatches", 0, iteration)
        for epoch in range(s.epochs):
            if epoch == 0 or s.recompute_advantages:
                with torch.no_grad():
                    values = self.network.value(inputs).numpy()
                advantages = advantages_of(s, rewards, values, rollout.terminated, rollout.truncated, mask)
                estimates = map(torch.from_numpy, (advantages, advantages + values[:-1], mask))
                tensors = inputs[:-1], actions, log_probs, old_values[:-1], *estimates
                samples = [tensor.flatten(0, 1) for tensor in tensors]  # a row per step, time first
            kls = []
            permutation = torch.from_numpy(generator.permutation(s.steps * s.envs))
            for rows in permutation.split(s.steps * s.envs // s.minibatches):
                self.optimizer.zero_grad()
                loss, kl = self.loss(*(column[rows] for column in samples))
                loss.backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), s.max_grad_norm)
                self.optimizer.step()
                kls.append(kl.item())
        return float(np.mean(kls))

    def loss(
        self,
        inputs: torch.Tensor,
        actions: torch.Tensor,
        old_log_probs: torch.Tensor,
        old_values: torch.Tensor,
        advantages: torch.Tensor,
        targets: torch.Tensor,
        mask: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of one minibatch and its KL divergence, means over its valid rows."""
        s, count = self.settings, mask.sum()
        mean = (advantages * mask).sum() / count
        deviation = (((advantages - mean) ** 2 * mask).sum() / count).sqrt()
        advantages = (advantages - mean) / (deviation + 1e-8)

        distribution = self.network.distribution(inputs)
        log_ratio = distribution.log_prob(actions) - old_log_probs
        ratio = log_ratio.exp()
        kl = ratio - 1 - log_ratio  # its mean estimates the KL divergence from the policy that collected
        clipped = ratio.clamp(1 - s.clip, 1 + s.clip)
        policy_loss = -torch.min(ratio * advantages, clipped * advantages)

        values = self.network.value(inputs)
        value_loss = 0.5 * (values - targets) ** 2
        if s.value_clip is not None:
            near = old_values + (values - old_values).clamp(-s.value_clip, s.value_clip)
            value_loss = torch.max(value_loss, 0.5 * (near - targets) ** 2)

        loss = policy_loss + s.value_coefficient * value_loss - s.entropy * distribution.entropy()
        return (loss * mask).sum() / count, (kl.detach() * mask).sum() / count


def train(settings: Settings, weights: dict[str, torch.Tensor] | None = None) -> ActorCritic:
    """Train from the given initial weights, or from PyTorch's, and return the network."""
    trainer = Trainer(settings, weights)
    for iteration in range(1, settings.iterations + 1):
        trainer.iterate(iteration)
    return trainer.network


def main() -> None:
    """Train CartPole, and print the mean length of episodes, which is their return, of every iteration."""
    torch.manual_seed(1)
    settings = Settings(
        "CartPole-v1",
        seed=1,
        envs=8,
        steps=128,
        iterations=40,
        epochs=10,
        minibatches=8,
        learning_rate=1e-3,
        hidden=(64, 64),
    )
    trainer = Trainer(settings)
    for iteration in range(1, settings.iterations + 1):
        rollout = trainer.iterate(iteration)
        episodes = max((rollout.terminated | rollout.truncated).sum(), 1)
        print(f"iteration {iteration}: about {rollout.mask.sum() / episodes:.0f} steps per episode")


if __name__ == "__main__":
    main()
