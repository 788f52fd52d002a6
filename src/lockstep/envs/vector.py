"""Engine `gymnasium-vector`: the vector versions that Gymnasium has of some environments."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from lockstep.envs.batches import RestartingEngine
from lockstep.envs.engine import EnvironmentFailed, State, Step
from lockstep.envs.interface import exit_text
from lockstep.envs.single import Recipe
from lockstep.envs.spaces import MASK
from lockstep.randomness import EnvironmentSeeds

__all__ = ["VectorEngine"]

_WORD = 2**64
"""Number of values of a 64-bit word."""


class VectorEngine(RestartingEngine):
    """Engine around Gymnasium's `vector_entry_point`. It can restore CartPole; other environments start new episodes at checkpoints."""

    def __init__(self, recipe: Recipe, seeds: EnvironmentSeeds, shard: int, count: int) -> None:
        """Create the `count` environments of a shard.

        Raises ValueError if there is no vector version, or if it has no next-step autoreset.
        """
        self._recipe = recipe
        self._seeds = seeds
        self._shard = shard
        self._count = count
        env = self._make()
        if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            env.close()
            raise ValueError(
                f"env.engine is 'gymnasium-vector': the vector version of {recipe.env_id} has no next-step autoreset; use 'gymnasium'"
            )
        observation_space = recipe.select_columns(env.single_observation_space)
        masks = env.reset(seed=0)[1].get(MASK)
        info = None if masks is None else {MASK: masks[0]}
        super().__init__(env, observation_space, env.single_action_space, recipe, shard * count, count, info)
        self._cartpole: Any = env.unwrapped if isinstance(env.unwrapped, CartPoleVectorEnv) else None
        self.restarts_episodes = self._cartpole is None

    def _make(self) -> gym.vector.VectorEnv[Any, Any, Any]:
        return self._recipe.make_vector(self._count)

    def _begin(self, iteration: int) -> NDArray[Any]:
        try:
            return self._reader.read_reset(*self._envs.reset(seed=self._seeds(self._shard, iteration)))
        except SystemExit as error:
            raise self._failure(error) from error

    def reset(self) -> NDArray[Any]:
        return self._begin(0)

    def step(self, actions: NDArray[Any]) -> Step:
        try:
            return super().step(actions)
        except SystemExit as error:
            raise self._failure(error) from error

    def _failure(self, error: SystemExit) -> EnvironmentFailed:
        first = self._shard * self._count
        return EnvironmentFailed(
            f"environments {first} to {first + self._count - 1} ({self._recipe.env_id}): their vector version {exit_text(error)}"
        )

    def state(self) -> State:
        env = self._cartpole
        if env is None:
            return {}
        assert env.state is not None
        return {
            "state": env.state.copy(),
            "steps": env.steps.copy(),
            "ended": env.prev_done.copy(),
            "generator": _generator_state(env.np_random),
        }

    def restore(self, state: State) -> NDArray[Any]:
        env = self._cartpole
        assert env is not None, "this engine is restarted, not restored"
        if set(state) != {"state", "steps", "ended", "generator"} or state["state"].shape != (4, self._count):
            raise ValueError(
                f"env.id is {self._recipe.env_id!r}: the checkpoint does not hold the state of {self._count} environments of this engine"
            )
        self._begin(0)
        env.state = np.ascontiguousarray(state["state"]).copy()
        env.steps = state["steps"].copy()
        env.prev_done = state["ended"].copy()
        _set_generator_state(env.np_random, state["generator"])
        observations: NDArray[Any] = self._reader.select_columns(env.state.T.astype(np.float32))
        return observations

    def restart_episodes(self, iteration: int) -> NDArray[Any]:
        assert self.restarts_episodes, "this engine is restored, not restarted"
        self._envs.close()
        self._envs = self._make()
        return self._begin(iteration)

    def close(self) -> None:
        self._envs.close()


def _generator_state(generator: np.random.Generator) -> NDArray[np.uint64]:
    """Return the state of a PCG64 generator as `[6]` words.

    These are its state and increment, two words each with the low word first, then 1 if half of a 64-bit draw is
    buffered for the next 32-bit draw, and that half.
    """
    values: dict[str, Any] = dict(generator.bit_generator.state)
    assert values["bit_generator"] == "PCG64", values["bit_generator"]
    state, increment = values["state"]["state"], values["state"]["inc"]
    numbers = (state % _WORD, state // _WORD, increment % _WORD, increment // _WORD)
    return np.array([*numbers, values["has_uint32"], values["uinteger"]], dtype=np.uint64)


def _set_generator_state(generator: np.random.Generator, words: NDArray[np.uint64]) -> None:
    low, high, increment_low, increment_high, has_half, half = (int(word) for word in words)
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high * _WORD + low, "inc": increment_high * _WORD + increment_low},
        "has_uint32": has_half,
        "uinteger": half,
    }
