"""A single environment made of a vector environment of one, for environments that have only a vector version."""

from typing import Any

import gymnasium as gym

from lockstep.envs.autoreset import NextStepBatch, space_of_one
from lockstep.envs.infos import Entry
from lockstep.envs.spaces import batch_entry

__all__ = ["SingleEnvironment"]


class SingleEnvironment(gym.Env[Any, Any]):
    """Gymnasium environment that does not reset itself."""

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], env_id: str) -> None:
        """Wrap a vector environment with `num_envs` 1. Raises ValueError as `NextStepBatch` does."""
        self._batch, self.env_id = NextStepBatch(env, env_id, 1), env_id
        self.observation_space = space_of_one(env, "single_observation_space", env_id)
        self.action_space = space_of_one(env, "single_action_space", env_id)
        self.metadata = dict(env.metadata)
        self.render_mode = getattr(env, "render_mode", None)
        self.max_episode_steps = getattr(env.unwrapped, "max_episode_steps", None)
        """Time limit of an episode; None if it is not known."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        observations, infos = self._batch.reset(seed)
        return batch_entry(observations, 0), _info(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        actions: Any = gym.vector.utils.create_empty_array(self.action_space, 1)
        actions = gym.vector.utils.concatenate(self.action_space, [action], actions)
        observations, rewards, terminated, truncated, infos = self._batch.step(actions)
        return (
            batch_entry(observations, 0),
            float(rewards[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            _info(infos),
        )

    def render(self) -> Any:
        frames = self._batch.env.render()
        return frames if frames is None else frames[0]

    def close(self) -> None:
        self._batch.env.close()


def _info(infos: dict[str, Any]) -> dict[str, Any]:
    """Return the info of the environment, without entries of same-step autoreset, which `NextStepBatch` has read."""
    return {name: value for name, value in Entry(infos, 0).items() if name not in ("final_obs", "final_info")}
