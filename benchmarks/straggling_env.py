"""The environment of benchmarks/preemption.py: Pendulum whose steps take time, three times as much on one rank in each iteration."""

import os
import random
import time
from typing import Any

import gymnasium as gym

from lockstep.processes.heartbeat import Heartbeat, own_cells

__all__ = ["SLOWER", "Straggling"]

SLOWER = 3
"""Factor of the time of a step on the slow rank."""
_PLAYERS = os.environ.get("STRAGGLING_PLAYERS", "").split()
_RANK = os.environ.get("LOCKSTEP_RANK", "0")
_STEP_SECONDS = 5e-4


class Straggling(gym.Wrapper[Any, Any, Any, Any]):
    """Pendulum with a pause in each step, as if it were simulated elsewhere. In every iteration one player is slow, at random."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(gym.make("Pendulum-v1", render_mode=render_mode))
        self._heartbeat = Heartbeat(own_cells())

    def step(self, action: Any) -> Any:
        """Step the environment after a pause. Without STRAGGLING_PLAYERS, numbers of ranks, no rank is slow."""
        is_slow = _PLAYERS and random.Random(self._heartbeat.iteration).choice(_PLAYERS) == _RANK
        time.sleep(_STEP_SECONDS * (SLOWER if is_slow else 1))
        return self.env.step(action)


gym.register("Straggling-v0", Straggling, max_episode_steps=200)
