"""The tasks `pendulum-dense` and `pendulum-sparse`: swing a pendulum up and hold it there, in episodes of 100 steps.

The pendulum is a point mass of 1 kg on a massless rod of 1 m. Its angle θ (rad) is 0 upright and grows
counterclockwise; ω (rad/s) is its angular velocity:

    dθ/dt = ω        dω/dt = (g / l) · sin θ + u / (m · l²)

with g = 9.81 m/s² and torque u = action · 5 N·m. The largest torque is about half of that which would hold the pendulum
horizontally (m · g · l = 9.81 N·m), so the pendulum must swing. One step is 0.05 s, one step of the classical
fourth-order Runge–Kutta method with constant torque. |ω| is then clipped to 8 rad/s.
"""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

__all__ = ["EPISODE_STEPS", "Pendulum", "dense", "sparse"]

EPISODE_STEPS = 100
"""Number of steps after which an episode is truncated."""

GRAVITY = 9.81
"""Acceleration of gravity in m/s². Length (m) and mass (kg) are 1 and so do not appear in the formulas."""
TORQUE = 5.0
"""Torque in N·m at action 1."""
STEP = 0.05
"""Duration of a step in s."""
MAX_SPEED = 8.0
"""Maximum of |ω| in rad/s."""
UPRIGHT = math.pi / 12
"""Largest |θ| in rad with reward 1 in `pendulum-sparse`."""

_PIXELS = 240


class Pendulum(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Pendulum with observation `(cos θ, sin θ, ω / 8)` float32 and action `[1]` in [-1, 1].

    The action is a fraction of the largest torque. The reward is that of the state after the step. Dense: `-(θ² + 0.1
    ω² + 0.001 u²)` with θ in [-π, π]. Sparse: 1 while |θ| ≤ 15°, else 0. An episode starts with θ uniform in [-π, π]
    and ω uniform in [-1, 1]. It never terminates.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / STEP)}  # noqa: RUF012

    def __init__(self, sparse: bool, render_mode: str | None = None) -> None:
        high = np.ones(3, dtype=np.float32)
        self.observation_space = Box(-high, high, dtype=np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.render_mode = render_mode
        self.theta = 0.0
        self.omega = 0.0
        self._sparse = sparse

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.theta = float(self.np_random.uniform(-math.pi, math.pi))
        self.omega = float(self.np_random.uniform(-1.0, 1.0))
        return self._observation(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        torque = TORQUE * min(1.0, max(-1.0, float(action[0])))
        theta, omega = advance(self.theta, self.omega, torque)
        self.theta = theta = math.remainder(theta, 2 * math.pi)
        self.omega = omega = min(MAX_SPEED, max(-MAX_SPEED, omega))
        if self._sparse:
            reward = 1.0 if abs(theta) <= UPRIGHT else 0.0
        else:
            reward = -(theta * theta + 0.1 * omega * omega + 0.001 * torque * torque)
        return self._observation(), reward, False, False, {}

    def _observation(self) -> NDArray[np.float32]:
        return np.array((math.cos(self.theta), math.sin(self.theta), self.omega / MAX_SPEED), dtype=np.float32)

    def render(self) -> NDArray[np.uint8] | None:
        """Return an image `[240, 240, 3]` uint8 with render mode `rgb_array`, else None."""
        if self.render_mode is None:
            return None
        import pygame

        surface = pygame.Surface((_PIXELS, _PIXELS))
        surface.fill((255, 255, 255))
        middle, length = _PIXELS / 2, 0.4 * _PIXELS
        tip = (middle - length * math.sin(self.theta), middle - length * math.cos(self.theta))
        pygame.draw.line(surface, (60, 60, 60), (middle, middle), tip, 6)
        pygame.draw.circle(surface, (200, 80, 60), tip, 14)
        pygame.draw.circle(surface, (0, 0, 0), (middle, middle), 5)
        return np.ascontiguousarray(pygame.surfarray.array3d(surface).transpose(1, 0, 2))


def advance(theta: float, omega: float, torque: float, seconds: float = STEP) -> tuple[float, float]:
    """Return angle (rad) and angular velocity (rad/s) after a Runge–Kutta step with constant `torque` (N·m)."""
    sin, half = math.sin, seconds / 2
    a1 = GRAVITY * sin(theta) + torque
    w2 = omega + half * a1
    a2 = GRAVITY * sin(theta + half * omega) + torque
    w3 = omega + half * a2
    a3 = GRAVITY * sin(theta + half * w2) + torque
    w4 = omega + seconds * a3
    a4 = GRAVITY * sin(theta + seconds * w3) + torque
    return theta + seconds / 6 * (omega + 2 * w2 + 2 * w3 + w4), omega + seconds / 6 * (a1 + 2 * a2 + 2 * a3 + a4)


def dense(render_mode: str | None = None) -> gym.Env[Any, Any]:
    """Create the task `pendulum-dense`."""
    return TimeLimit(Pendulum(sparse=False, render_mode=render_mode), EPISODE_STEPS)


def sparse(render_mode: str | None = None) -> gym.Env[Any, Any]:
    """Create the task `pendulum-sparse`."""
    return TimeLimit(Pendulum(sparse=True, render_mode=render_mode), EPISODE_STEPS)
