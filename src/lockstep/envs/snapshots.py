"""State of vector environments, saved in checkpoints and restored from them."""

from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from numpy.typing import NDArray

from lockstep.envs.engine import State
from lockstep.envs.layout import ContractViolation

__all__ = ["Snapshots", "find_snapshots", "is_cartpole"]

_WORD = 2**64
"""Number of values of a 64-bit word."""
_GENERATOR = "generator"
"""Name of the state of the random generator of a vector environment."""


class Snapshots(Protocol):
    """Access to the state of a vector environment."""

    def save(self) -> State:
        """Return the state."""

    def fit(self, state: State) -> bool:
        """Return True if `load` accepts the state."""

    def load(self, state: State) -> NDArray[Any] | None:
        """Restore a state after a reset. Return the observations `[B, …]`, or None if they do not follow from the state."""


def is_cartpole(env: gym.vector.VectorEnv[Any, Any, Any]) -> bool:
    """Return True for Gymnasium's own vector version of CartPole."""
    return type(env) is CartPoleVectorEnv


def find_snapshots(env: gym.vector.VectorEnv[Any, Any, Any]) -> Snapshots | None:
    """Return the access to the state of an environment; None if it can't be restored."""
    if is_cartpole(env):
        return _CartPoleSnapshots(env)
    base = env.unwrapped
    return _MethodSnapshots(base) if hasattr(base, "get_state") and hasattr(base, "set_state") else None


class _CartPoleSnapshots:
    def __init__(self, env: Any) -> None:
        self._env = env

    def save(self) -> State:
        env = self._env
        return {
            "state": env.state.copy(),
            "steps": env.steps.copy(),
            "ended": env.prev_done.copy(),
            _GENERATOR: _generator_state(env.np_random),
        }

    def fit(self, state: State) -> bool:
        return set(state) == {"state", "steps", "ended", _GENERATOR} and state["state"].shape == (4, self._env.num_envs)

    def load(self, state: State) -> NDArray[Any]:
        env = self._env
        env.state = np.ascontiguousarray(state["state"]).copy()
        env.steps = state["steps"].copy()
        env.prev_done = state["ended"].copy()
        _set_generator_state(env.np_random, state[_GENERATOR])
        observations: NDArray[Any] = env.state.T.astype(np.float32)
        return observations


class _MethodSnapshots:
    """State of an environment with `get_state() -> dict[str, array]` and `set_state(dict)`, and of its `np_random`."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def save(self) -> State:
        state = self._env.get_state()
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise ContractViolation(
                f"returned {type(state).__name__} from get_state, expected a dict of arrays by name"
            )
        arrays = {name: np.array(value) for name, value in state.items()}
        for name, array in arrays.items():
            if name == _GENERATOR or array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
                raise ContractViolation(
                    f"returned {name!r} of type {array.dtype} from get_state, expected an array of numbers under a name other than "
                    f"{_GENERATOR!r}"
                )
        generator = self._generator
        return arrays if generator is None else arrays | {_GENERATOR: _generator_state(generator)}

    @property
    def _generator(self) -> np.random.Generator | None:
        """`np_random` if `reset` has seeded it; None if the environment does not use it."""
        generator = getattr(self._env, "_np_random", None)
        pcg = isinstance(generator, np.random.Generator) and isinstance(generator.bit_generator, np.random.PCG64)
        return generator if pcg else None

    def fit(self, state: State) -> bool:
        expected = self.save()
        return set(state) == set(expected) and all(
            (state[name].shape, state[name].dtype) == (array.shape, array.dtype) for name, array in expected.items()
        )

    def load(self, state: State) -> None:
        self._env.set_state({name: value.copy() for name, value in state.items() if name != _GENERATOR})
        generator = self._generator
        if generator is not None:
            _set_generator_state(generator, state[_GENERATOR])


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
