"""Engine `gymnasium-vector`: the batched versions that some environments have of themselves in Gymnasium."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from lockstep.envs.actions import action_converter
from lockstep.envs.batches import Batches
from lockstep.envs.engine import EnvironmentFailed, State, Step
from lockstep.envs.interface import exited
from lockstep.envs.single import Recipe
from lockstep.envs.spaces import MASK, Spaces, describe
from lockstep.randomness import EnvironmentSeeds

__all__ = ["Vector"]

_WORD = 2**64


class Vector:
    """Gymnasium's `vector_entry_point`. CartPole's state can be saved and restored; others are renewed."""

    def __init__(self, recipe: Recipe, seeds: EnvironmentSeeds, shard: int, count: int) -> None:
        self._recipe = recipe
        self._seeds = seeds
        self._shard = shard
        self._count = count
        self._env = self._make()
        env = self._env
        if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            env.close()
            raise ValueError(
                f"env.engine is 'gymnasium-vector': {recipe.env_id} does not reset itself on the next step; use 'gymnasium'"
            )
        seen, acted = recipe.seen(env.single_observation_space), env.single_action_space
        masks = env.reset(seed=0)[1].get(MASK)
        info = None if masks is None else {MASK: masks[0]}
        self.spaces: Spaces = describe(seen, acted, recipe.env_id, info)
        self._cartpole: Any = env.unwrapped if isinstance(env.unwrapped, CartPoleVectorEnv) else None
        self.renews = self._cartpole is None
        self._convert = action_converter(acted)
        self._batches = Batches(seen, self.spaces, recipe, shard * count, count)

    @property
    def pixels(self) -> NDArray[np.uint8]:
        return self._batches.pixels

    def _make(self) -> gym.vector.VectorEnv[Any, Any, Any]:
        return self._recipe.vector(self._count)

    def _begin(self, iteration: int) -> NDArray[Any]:
        try:
            return self._batches.first(*self._env.reset(seed=self._seeds(self._shard, iteration)))
        except SystemExit as error:
            raise self._failure(error) from error

    def reset(self) -> NDArray[Any]:
        return self._begin(0)

    def step(self, actions: NDArray[Any]) -> Step:
        try:
            return self._batches.step(*self._env.step(self._convert(actions)))
        except SystemExit as error:
            raise self._failure(error) from error

    def _failure(self, error: SystemExit) -> EnvironmentFailed:
        first = self._shard * self._count
        return EnvironmentFailed(
            f"environments {first} to {first + self._count - 1} ({self._recipe.env_id}): their batched version {exited(error)}"
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
            "generator": _words(env.np_random),
        }

    def restore(self, state: State) -> NDArray[Any]:
        env = self._cartpole
        assert env is not None, "this engine is renewed, not restored"
        if set(state) != {"state", "steps", "ended", "generator"} or state["state"].shape != (4, self._count):
            raise ValueError(
                f"env.id is {self._recipe.env_id!r}: the checkpoint does not hold the state of {self._count} environments of this engine"
            )
        self._begin(0)
        env.state = np.ascontiguousarray(state["state"]).copy()
        env.steps = state["steps"].copy()
        env.prev_done = state["ended"].copy()
        _set_words(env.np_random, state["generator"])
        observations: NDArray[Any] = self._batches.kept(env.state.T.astype(np.float32))
        return observations

    def renew(self, iteration: int) -> NDArray[Any]:
        assert self.renews, "this engine is restored, not renewed"
        self._env.close()
        self._env = self._make()
        return self._begin(iteration)

    def close(self) -> None:
        self._env.close()


def _words(generator: np.random.Generator) -> NDArray[np.uint64]:
    """The state of a PCG64 generator: two 128-bit numbers, low word first, and the half of a draw that is kept for the next."""
    whole: dict[str, Any] = dict(generator.bit_generator.state)
    assert whole["bit_generator"] == "PCG64", whole["bit_generator"]
    state, increment = whole["state"]["state"], whole["state"]["inc"]
    numbers = [
        state % _WORD,
        state // _WORD,
        increment % _WORD,
        increment // _WORD,
        whole["has_uint32"],
        whole["uinteger"],
    ]
    return np.array(numbers, dtype=np.uint64)


def _set_words(generator: np.random.Generator, words: NDArray[np.uint64]) -> None:
    low, high, increment_low, increment_high, has_half, half = (int(word) for word in words)
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high * _WORD + low, "inc": increment_high * _WORD + increment_low},
        "has_uint32": has_half,
        "uinteger": half,
    }
