"""An environment of your own, in a module: for the command line and for several ranks.

    lockstep train --env.module my_envs --env Corridor-v0 --total-steps 50_000

Its folder is the current one, or where Python looks for modules.
"""

import gymnasium as gym
import numpy as np


class Corridor(gym.Env):
    """Nine places in a row; the prize is at the right end, and every step costs a little."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)  # left, right

    def reset(self, *, seed=None, options=None):
        """Begins at a random place. `super().reset(seed=seed)` makes `self.np_random`: draw from nothing else, and runs repeat."""
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(8))
        return self._seen(), {}

    def step(self, action):
        """One place to the left or right. The time limit is put around it below: a truncation, which is no failure."""
        self.place = min(max(self.place + 2 * int(action) - 1, 0), 8)
        return self._seen(), 1.0 if self.place == 8 else -0.05, self.place == 8, False, {}

    def _seen(self):
        return np.array([self.place / 8], np.float32)


def make_env():
    """A new one each time it is called."""
    return gym.wrappers.TimeLimit(Corridor(), max_episode_steps=50)


gym.register("Corridor-v0", Corridor, max_episode_steps=50)
