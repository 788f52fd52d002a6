"""A game of several agents as a single environment in which the agents take turns, for `eval`, `play` and videos."""

from typing import Any

import gymnasium as gym

from lockstep.envs.layout import ContractViolation
from lockstep.envs.parallel import common_space

__all__ = ["TurnTaking"]


class TurnTaking(gym.Env[Any, Any]):
    """Parallel environment with one step per agent: the game moves on when every agent in it has acted.

    An observation is that of the agent whose turn it is. The rewards of all agents, divided by the number of possible agents, come with the
    last turn of a step of the game. An episode ends with the game: terminated if the last agents were, else truncated.
    """

    def __init__(self, env: Any, env_id: str) -> None:
        """Wrap a parallel environment. Raises ValueError if its agents have different spaces."""
        self.parallel, self.env_id = env, env_id
        self.observation_space = common_space(env, "observation_space", env_id)
        self.action_space = common_space(env, "action_space", env_id)
        self.metadata = dict(env.metadata or {})
        if self.metadata.get("render_fps"):  # a frame is shown per turn
            self.metadata["render_fps"] *= len(env.possible_agents)
        self.render_mode = getattr(env, "render_mode", None)
        cycles = getattr(getattr(env, "unwrapped", env), "max_cycles", None)
        self.max_episode_steps = None if cycles is None else cycles * len(env.possible_agents)
        """Largest number of turns in an episode; None if it is not known."""
        self._turns: list[Any] = []
        self._actions: dict[Any, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._observations, self._infos = self.parallel.reset(seed=seed, options=options)
        self._turns, self._actions = list(self.parallel.agents), {}
        if not self._turns:
            raise ContractViolation("left no agents in the game")
        return self._current()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._actions[self._turns.pop(0)] = action
        if self._turns:
            observation, info = self._current()
            return observation, 0.0, False, False, info
        results = self.parallel.step(self._actions)
        self._observations, rewards, terminated, truncated, self._infos = results
        ended = [agent for agent in self._actions if terminated.get(agent) or truncated.get(agent)]
        shown_agent, self._actions, self._turns = next(iter(self._actions)), {}, list(self.parallel.agents)
        reward = float(sum(map(float, rewards.values()))) / len(self.parallel.possible_agents)
        over = not self._turns
        if over:
            self._turns = [shown_agent]
        observation, info = self._current()
        ends_terminated = over and all(terminated.get(agent) for agent in ended)
        return observation, reward, ends_terminated, over and not ends_terminated, info

    def _current(self) -> tuple[Any, dict[str, Any]]:
        agent = self._turns[0]
        return self._observations[agent], dict(self._infos.get(agent, {}))

    def render(self) -> Any:
        return self.parallel.render()

    def close(self) -> None:
        self.parallel.close()
