"""Engine `pettingzoo`: games of several agents, each of which is an environment of the shard."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.actions import action_converter, each_action
from lockstep.envs.engine import EnvironmentFailed, State, Step
from lockstep.envs.env_factory import EnvFactory
from lockstep.envs.episodes import EpisodeLog
from lockstep.envs.history import History, check_state, current_observations, episode_logs, restore_history
from lockstep.envs.infos import episode_values
from lockstep.envs.interface import Interface, exit_text, failure_text
from lockstep.envs.layout import ContractViolation
from lockstep.randomness import EnvironmentSeeds

__all__ = ["RETURN", "GamesEngine"]

RETURN = "return/"
"""Prefix of an agent's name in `env.info_metrics`: the return of its episodes."""


class _Game:
    """One game of N agents with next-step autoreset and seeded episodes. Its arrays have a row per possible agent.

    An agent that is not in the game has `terminated` in every step: its rows are reset rows, until the observation with which it comes, or
    the first one of the next game.
    """

    def __init__(self, factory: EnvFactory, interface: Interface, seeds: EnvironmentSeeds, index: int) -> None:
        self._env = factory.make_parallel()
        self._layout, spaces = interface.layout, interface.spaces
        self._seeds, self._index = seeds, index
        self._agents: list[Any] = list(self._env.possible_agents)
        self._info_metrics = factory.info_metrics
        count = len(self._agents)
        self._absent_row = interface.layout.absent_row
        self.observations = np.tile(self._absent_row, (count, 1))
        self.pixels = np.zeros((count, spaces.pixel_count), np.uint8)
        self.rewards = np.zeros(count)
        self.terminated, self.truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        self.infos = np.full((count, len(factory.info_metrics)), np.nan)
        self.present = np.zeros(count, np.bool_)
        """`[N]`: the agent is in the game."""
        self.over = False
        """True if all agents have ended, so that the next step is a reset."""
        self.episode = -1
        self._returns = np.zeros(count)

    def begin(self, episode: int) -> None:
        """Begin an episode of the game."""
        self.episode, self.over = episode, False
        observations, infos = self._env.reset(seed=self._seeds(self._index, episode))
        self.rewards[:] = 0
        self.truncated[:] = self.present[:] = False
        # a restored game has no rows of earlier episodes
        self.observations[:] = self._absent_row
        self.pixels[:] = 0
        self.infos[:] = np.nan
        self._update_present(observations, infos)
        if not self.present.any():
            raise ContractViolation("has no agents after a reset")
        self.terminated[:] = ~self.present

    def step(self, actions: Sequence[Any]) -> None:
        """Take a step with the actions of all possible agents, or begin the next episode."""
        if self.over:
            self.begin(self.episode + 1)
            return
        before = self.present.copy()
        chosen = {agent: action for agent, action, acts in zip(self._agents, actions, before, strict=True) if acts}
        observations, rewards, terminated, truncated, infos = self._env.step(chosen)
        for index, agent in enumerate(self._agents):
            if before[index]:
                self.rewards[index] = _entry(rewards, agent, "reward")
                self.terminated[index] = _entry(terminated, agent, "termination")
                self.truncated[index] = _entry(truncated, agent, "truncation")
        self.rewards[~before], self.terminated[~before], self.truncated[~before] = 0, True, False
        self._returns += self.rewards
        ended = before & (self.terminated | self.truncated)
        self._read(observations, infos, ended, has_ended=True)
        if self._info_metrics:
            self._read_infos(infos, ended)
        self._update_present(observations, infos)
        self._check_ended(before, ended)
        self.terminated &= ~(self.present & ~before)  # an agent that comes begins an episode
        self.over = not self.present.any()

    def _update_present(self, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        agents = set(self._env.agents)
        if unknown := agents - set(self._agents):
            raise ContractViolation(f"has agents that possible_agents does not have: {', '.join(map(str, unknown))}")
        came = np.array([agent in agents for agent in self._agents]) & ~self.present
        self._returns[came] = 0
        self.present[:] = [agent in agents for agent in self._agents]
        self._read(observations, infos, self.present)

    def _check_ended(self, before: NDArray[np.bool_], ended: NDArray[np.bool_]) -> None:
        for wrong, problem in (
            (ended & self.present, "still has {} in agents after its episode ended"),
            (before & ~ended & ~self.present, "no longer has {} in agents, although its episode has not ended"),
        ):
            if wrong.any():
                raise ContractViolation(problem.format(self._agents[int(wrong.argmax())]))

    def _read(self, observations: Any, infos: Any, which: NDArray[np.bool_], has_ended: bool = False) -> None:
        for index in np.flatnonzero(which).tolist():
            agent = self._agents[index]
            observation = _entry(observations, agent, "observation")
            self._layout.check(observation)
            self.observations[index] = self._layout.row(observation, infos.get(agent, {}), has_ended)
            if self.pixels.shape[1]:
                self.pixels[index] = self._layout.pixels(observation)

    def _read_infos(self, infos: Mapping[Any, Any], ended: NDArray[np.bool_]) -> None:
        self.infos[:] = np.nan
        for index in np.flatnonzero(ended).tolist():
            agent = self._agents[index]
            returns = dict.fromkeys((RETURN + str(other) for other in self._agents), np.nan)
            returns[RETURN + str(agent)] = float(self._returns[index])
            self.infos[index] = episode_values(self._info_metrics, {**infos.get(agent, {}), **returns})

    def close(self) -> None:
        self._env.close()


class GamesEngine:
    """Engine with `count` environments: the agents of game 0, those of game 1, and so on. It restores games by replay."""

    restarts_episodes = False
    lost: Sequence[int] = ()

    def __init__(self, factory: EnvFactory, seeds: EnvironmentSeeds, first: int, count: int) -> None:
        """Create the games of a shard, whose environments are `first` to `first + count - 1`. These must be whole games."""
        agents = len(factory.agents())
        assert count % agents == 0, (count, agents)
        self._factory, self._seeds = factory, seeds
        self._games_before, self._agent_count = first // agents, agents
        self._interface = Interface.from_factory(factory)
        self.spaces = self._interface.spaces
        self._convert = action_converter(self._interface.action_space)
        self._games = self._make(count // agents)
        self._history = History(len(self._games))

    def _make(self, count: int) -> list[_Game]:
        return [_Game(self._factory, self._interface, self._seeds, self._games_before + game) for game in range(count)]

    @property
    def pixels(self) -> NDArray[np.uint8]:
        return np.concatenate([game.pixels for game in self._games])

    @property
    def infos(self) -> NDArray[np.float64]:
        return np.concatenate([game.infos for game in self._games])

    @property
    def absent(self) -> NDArray[np.bool_]:
        return np.concatenate([~game.present for game in self._games])

    @property
    def _observations(self) -> NDArray[Any]:
        return np.concatenate([game.observations for game in self._games])

    def _failure(self, game: int, error: BaseException) -> EnvironmentFailed:
        text = exit_text(error) if isinstance(error, SystemExit) else failure_text(type(error), error)
        return EnvironmentFailed(f"game {self._games_before + game} ({self._factory.env_id}) {text}")

    def reset(self) -> NDArray[Any]:
        self._history = History(len(self._games))
        for index, game in enumerate(self._games):
            try:
                game.begin(0)
            except (Exception, SystemExit) as error:
                raise self._failure(index, error) from (None if isinstance(error, ContractViolation) else error)
        return self._observations

    def step(self, actions: NDArray[Any]) -> Step:
        games, rows = self._games, actions.reshape(len(self._games), self._agent_count, *actions.shape[1:])
        self._history.record(rows)
        for index, (game, row) in enumerate(zip(games, rows, strict=True)):
            try:
                game.step(each_action(self._convert(row)))
            except (Exception, SystemExit) as error:
                raise self._failure(index, error) from (None if isinstance(error, ContractViolation) else error)
        over = np.array([game.over for game in games])
        self._history.add(np.array([game.rewards.sum() for game in games]), over, np.zeros_like(over))
        rewards, terminated, truncated = (
            np.concatenate([getattr(game, name) for game in games]) for name in ("rewards", "terminated", "truncated")
        )
        return self._observations, rewards, terminated, truncated

    def state(self) -> State:
        self._history.warn_if_long(self._games_before, self._factory.env_id)
        return self._history.state(*self._per_game())

    def _per_game(self) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """Return the observations and images of each game, as rows."""
        games = len(self._games)
        return self._observations.reshape(games, -1), self.pixels.reshape(games, -1)

    def restore(self, state: State) -> NDArray[Any]:
        check_state(state, len(self._games), self._agent_count * self.spaces.pixel_count, self._factory.env_id)
        self.close()
        self._games = self._make(len(self._games))
        returns = []
        for index, (game, log) in enumerate(zip(self._games, episode_logs(state), strict=True)):
            try:
                returns.append(self._replay(game, log))
            except (Exception, SystemExit) as error:
                raise self._failure(index, error) from error
        replayed = {
            "episodes": np.array([game.episode for game in self._games]),
            "waiting": np.array([game.over for game in self._games]),
            "returns": np.array(returns),
            **current_observations(*self._per_game()),
        }
        self._history = restore_history(state, replayed, self._games_before, self._factory.env_id)
        return self._observations

    def _replay(self, game: _Game, log: EpisodeLog) -> float:
        game.begin(log.episode)
        total = 0.0
        for row in log.actions:
            game.step(each_action(self._convert(row)))
            total += float(game.rewards.sum())
        return total

    def restart_episodes(self, iteration: int) -> NDArray[Any]:
        raise AssertionError("this engine is restored, not restarted")

    def close(self) -> None:
        for game in self._games:
            game.close()


def _entry(values: Mapping[Any, Any], agent: Any, name: str) -> Any:
    """Return the entry of an agent. Raises ContractViolation if there is none."""
    try:
        return values[agent]
    except (KeyError, TypeError):
        raise ContractViolation(f"returned no {name} of {agent}, which is in agents") from None
