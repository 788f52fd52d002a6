"""Custom vector environment: a simulator that steps a whole batch in one call.

    lockstep train --env.module own_vector_env --total-steps 200_000

or, from a program, lockstep.train(env=Points, total_steps=200_000).
"""

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


# [essential]
class Points(VectorEnv):
    """Points in a plane that must reach the origin; every step costs the distance."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs, max_episode_steps=100):
        self.num_envs, self.max_episode_steps = num_envs, max_episode_steps
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.single_action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random
        self.state = np.zeros((self.num_envs, 4), np.float32)  # position, velocity
        self.steps = np.zeros(self.num_envs, np.int64)
        self._begin_episodes(np.ones(self.num_envs, bool))
        self.ended = np.zeros(self.num_envs, bool)
        return self.state.copy(), {}

    def step(self, actions):
        reset = self.ended  # the episodes of these ended in the step before: they only reset
        self.state[:, 2:] = 0.9 * self.state[:, 2:] + 0.1 * actions
        self.state[:, :2] += 0.2 * self.state[:, 2:]
        self.steps += 1
        distance = np.linalg.norm(self.state[:, :2], axis=1)
        rewards = np.where(reset, 0.0, -distance)
        terminated, truncated = ~reset & (distance < 0.1), ~reset & (self.steps >= self.max_episode_steps)
        self._begin_episodes(reset)
        self.ended = terminated | truncated
        return self.state.copy(), rewards, terminated, truncated, {}

    def _begin_episodes(self, which):
        self.state[which] = 0
        self.state[which, :2] = self.np_random.uniform(-1, 1, (which.sum(), 2))
        self.steps[which] = 0

    # optional: runs continue within an episode after an interruption, and episodes are not cut at checkpoints
    def get_state(self):
        return {"state": self.state, "steps": self.steps, "ended": self.ended}

    def set_state(self, state):
        self.state, self.steps, self.ended = state["state"], state["steps"], state["ended"]


gym.register("Points-v0", vector_entry_point=Points, max_episode_steps=100)
# [end]
