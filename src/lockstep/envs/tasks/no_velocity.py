"""Tasks without velocities: Gymnasium's environments with only some columns of their observations.

A single observation does not show the velocities, so a policy needs memory. A task is defined only by the columns that
it shows: every engine that has the original environment has the task.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

__all__ = ["NO_VELOCITY_TASKS", "NoVelocityTask", "SelectColumns", "selected_space"]


@dataclass(frozen=True)
class NoVelocityTask:
    """Partially observed version of an environment."""

    base: str
    """Id of the original environment."""
    columns: tuple[int, ...]
    """Columns of the original observations that the task shows."""


NO_VELOCITY_TASKS = {
    "cartpole-no-velocity": NoVelocityTask("CartPole-v1", (0, 2)),  # position, angle
    # position, angle, contact of each leg
    "lunarlander-no-velocity": NoVelocityTask("LunarLander-v3", (0, 1, 4, 6, 7)),
    "mountaincar-continuous-no-velocity": NoVelocityTask("MountainCarContinuous-v0", (0,)),  # position
    "pendulum-no-velocity": NoVelocityTask("Pendulum-v1", (0, 1)),  # cosine and sine of the angle
}
"""Tasks by their `env.id`."""


def selected_space(space: gym.Space[Any], columns: tuple[int, ...]) -> Box:
    """Return the Box of some columns of a one-dimensional Box."""
    assert isinstance(space, Box)
    indices = list(columns)
    return Box(space.low[indices], space.high[indices], dtype=space.dtype.type)


class SelectColumns(gym.Wrapper[NDArray[Any], Any, NDArray[Any], Any]):
    """Wrapper that returns some columns of the observations."""

    def __init__(self, env: gym.Env[NDArray[Any], Any], columns: tuple[int, ...]) -> None:
        super().__init__(env)
        self.observation_space = selected_space(env.observation_space, columns)
        self._columns = np.array(columns)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation[self._columns], info

    def step(self, action: Any) -> tuple[NDArray[Any], Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation[self._columns], reward, terminated, truncated, info
