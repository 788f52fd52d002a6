"""Tasks without velocities: those of Gymnasium, of whose observations only some numbers are kept.

What is left does not tell where things move to, so a policy needs memory. Which columns are kept is all that there is to such a task:
every engine that has the original has the task.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

__all__ = ["HIDDEN", "Columns", "Hidden", "kept"]


@dataclass(frozen=True)
class Hidden:
    """An environment seen in part."""

    base: str
    """The id of the whole."""
    columns: tuple[int, ...]
    """Which numbers of its observations are kept."""


HIDDEN = {
    "cartpole-no-velocity": Hidden("CartPole-v1", (0, 2)),  # position, angle
    "lunarlander-no-velocity": Hidden("LunarLander-v3", (0, 1, 4, 6, 7)),  # position, angle, contact of each leg
    "mountaincar-continuous-no-velocity": Hidden("MountainCarContinuous-v0", (0,)),  # position
    "pendulum-no-velocity": Hidden("Pendulum-v1", (0, 1)),  # cosine and sine of the angle
}
"""By the name that `env.id` takes."""


def kept(space: gym.Space[Any], columns: tuple[int, ...]) -> Box:
    """What is left of the space of a whole observation."""
    assert isinstance(space, Box)
    places = list(columns)
    return Box(space.low[places], space.high[places], dtype=space.dtype.type)


class Columns(gym.Wrapper[NDArray[Any], Any, NDArray[Any], Any]):
    """Keeps some columns of the observations."""

    def __init__(self, env: gym.Env[NDArray[Any], Any], columns: tuple[int, ...]) -> None:
        super().__init__(env)
        self.observation_space = kept(env.observation_space, columns)
        self._columns = np.array(columns)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation[self._columns], info

    def step(self, action: Any) -> tuple[NDArray[Any], Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation[self._columns], reward, terminated, truncated, info
