"""Vector environments with every autoreset mode, right and wrong, registered with Gymnasium under `lockstep-tests/`."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

WALK = "lockstep-tests/Walk-v0"


class Walk(VectorEnv[Any, Any, Any]):
    """Walks of random lengths: environment i starts at i and moves with its action. Episodes end after 3 + i steps.

    The end is a termination if i is even. An observation is the position, and the number of the step. `fault` names what is wrong,
    or `reused`, which is allowed: a reset clears the arrays that the last step has returned.
    """

    def __init__(self, num_envs: int, mode: str = "NEXT_STEP", fault: str = "", noise: float = 0.0) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode[mode] if mode else None}
        self.mode, self.fault, self.noise = AutoresetMode[mode or "NEXT_STEP"], fault, noise
        self.num_envs = num_envs + (fault == "count")
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = gym.spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        mask = None if options is None else options.get("reset_mask")
        if mask is None or self.fault == "mask":
            self.state = np.zeros((self.num_envs, 2), np.float32)
            self.ended = np.zeros(self.num_envs, np.bool_)
            mask = np.ones(self.num_envs, np.bool_)
        self.begin(mask)
        for array in getattr(self, "returned", ()) if self.fault == "reused" else ():
            array[mask] = 0
        observations = self.state.astype(np.float64 if self.fault == "dtype" else np.float32)
        return observations if self.fault == "old reset" else (observations, {})

    def begin(self, which: Any) -> None:
        noise = self.noise * self.np_random.uniform(size=int(which.sum())) if self.noise else 0.0
        self.state[which] = np.stack([np.arange(self.num_envs)[which] + noise, np.zeros(which.sum())], 1)
        self.ended[which] = False

    def step(self, actions: Any) -> Any:
        if self.fault == "raise":
            raise RuntimeError("user's fault")
        assert self.mode != AutoresetMode.DISABLED or not self.ended.any(), "stepped after the end"
        next_step = self.mode == AutoresetMode.NEXT_STEP and self.fault not in ("steps on", "quiet", "final_obs")
        reset = self.ended if next_step else np.zeros(self.num_envs, np.bool_)
        self.state += np.stack([actions, np.ones(self.num_envs)], 1).astype(np.float32)
        rewards = np.where(reset | (self.fault == "quiet"), 0.0, self.state[:, 1] + actions)
        ended = ~reset & (self.state[:, 1] >= 3 + np.arange(self.num_envs))
        self.begin(reset) if next_step else None
        infos: dict[str, Any] = {}
        observations = self.state.copy()
        at_once = self.fault == "at once"
        if ended.any() and (at_once or (not next_step and self.mode != AutoresetMode.DISABLED)):
            if self.fault not in ("no final_obs", "quiet", "steps on", "at once"):
                infos = {"final_obs": observations.copy(), "_final_obs": ended.copy()}
            self.begin(ended)
            observations = self.state.copy()
        self.ended = ended & (self.mode != AutoresetMode.SAME_STEP) & (not at_once)
        even = np.arange(self.num_envs) % 2 == 0
        if self.fault == "nan":
            rewards[1] = np.nan
        if self.fault == "rewards":
            rewards = rewards[:, np.newaxis]
        flags = (ended & even).astype(np.int64 if self.fault == "flags" else np.bool_), ended & ~even
        observations = observations[:, :1] if self.fault == "shape" else observations
        self.returned = rewards, *flags
        return (observations, rewards, *flags, infos)[: 4 if self.fault == "old step" else 5]


class Restorable(Walk):
    def get_state(self) -> dict[str, Any]:
        return {"state": self.state, "ended": self.ended}

    def set_state(self, state: dict[str, Any]) -> None:
        self.state, self.ended = state["state"], state["ended"]


def register() -> None:
    """Register the environments with Gymnasium. May be called more than once."""
    if WALK not in gym.registry:
        gym.register(WALK, vector_entry_point=Walk)  # type: ignore[arg-type]
        gym.register(WALK.replace("Walk", "Restorable"), vector_entry_point=Restorable)  # type: ignore[arg-type]
