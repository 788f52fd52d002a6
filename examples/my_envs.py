"""Custom environment in a module, which the command line and several ranks can import.

    lockstep train --env.module my_envs --env Corridor-v0 --total-steps 50_000

The module must be in the current folder or on Python's import path.
"""

import gymnasium as gym
import numpy as np


class Corridor(gym.Env):
    """Nine cells in a row; the goal is the cell at the right end, and every step has a small cost."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)  # left, right

    def reset(self, *, seed=None, options=None):
        """Start in a random cell. Draw random numbers only from `self.np_random`, which `super().reset(seed=seed)` seeds, so that runs repeat."""
        super().reset(seed=seed)
        self.position = int(self.np_random.integers(8))
        return self._observe(), {}

    def step(self, action):
        """Move one cell to the left or right. The time limit is a wrapper (below), which truncates the episode but does not terminate it."""
        self.position = min(max(self.position + 2 * int(action) - 1, 0), 8)
        return self._observe(), 1.0 if self.position == 8 else -0.05, self.position == 8, False, {}

    def _observe(self):
        return np.array([self.position / 8], np.float32)


def make_env():
    """Create a new environment."""
    return gym.wrappers.TimeLimit(Corridor(), max_episode_steps=50)


gym.register("Corridor-v0", Corridor, max_episode_steps=50)
