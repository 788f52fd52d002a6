"""What the rest of lockstep knows of an environment's spaces, and how observations become flat rows of numbers.

An observation is delivered as one row of `O` floats: a Box is flattened, a Discrete becomes one-hot, a Tuple is the
concatenation of its parts. Float32 and float64 keep their type; everything else becomes float32.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, Tuple
from gymnasium.spaces.utils import flatdim, flatten
from numpy.typing import NDArray

__all__ = ["Spaces", "action_converter", "batch_flattener", "describe", "flat_dtype", "flattener"]

_OBSERVATIONS = "Box (numbers, not images), Discrete and Tuple of these"
_ACTIONS = "Discrete and Box"


@dataclass(frozen=True, eq=False)
class Spaces:
    """The sizes of an environment's observations and actions.

    An observation is a row of `O` numbers, its features and then the mask, and `P` bytes of images. An action is a row of `A`
    numbers: one for each choice, which counts from 0, then the continuous ones.
    """

    observation_size: int
    """`O`, after flattening: features, then the mask."""
    choices: tuple[int, ...]
    """Number of options of each discrete component of an action."""
    action_low: NDArray[np.float32]
    """`[continuous components]`; may be -inf."""
    action_high: NDArray[np.float32]
    """`[continuous components]`; may be inf."""
    images: tuple[tuple[int, int, int], ...] = ()
    """(channels, height, width) of each image, whose bytes lie one after the other in an observation's `P`."""
    mask_size: int = 0
    """Last columns of a row: 1 where an option of an action is allowed, for the options of all choices; 0: everything always is."""
    frames_per_step: int = 1
    """Frames of a game that one step takes."""

    @property
    def feature_size(self) -> int:
        """Columns of a row that networks see."""
        return self.observation_size - self.mask_size

    @property
    def pixel_count(self) -> int:
        """`P`, bytes of an observation's images."""
        return sum(math.prod(shape) for shape in self.images)

    @property
    def continuous_size(self) -> int:
        """Number of continuous components of an action."""
        return len(self.action_low)

    @property
    def action_size(self) -> int:
        """`A`, columns of an action's row."""
        return len(self.choices) + self.continuous_size

    @property
    def discrete_actions(self) -> int | None:
        """Number of options of an action that is one choice; such actions are whole numbers `[B]`, not rows. None for others."""
        return self.choices[0] if self.action_size == len(self.choices) == 1 else None


def describe(observation_space: Space[Any], action_space: Space[Any], env_id: str) -> Spaces:
    """The sizes of a single environment's spaces. Raises ValueError, naming the space, for one that is not supported."""
    problem = _observation_problem(observation_space)
    if problem:
        raise ValueError(
            f"env.id is {env_id!r}: its observations are {problem}, which is not supported; {_OBSERVATIONS} are"
        )
    none = np.zeros(0, dtype=np.float32)
    size = flatdim(observation_space)
    if isinstance(action_space, Discrete):
        return Spaces(size, (int(action_space.n),), none, none)
    if isinstance(action_space, Box) and np.issubdtype(action_space.dtype, np.floating):
        low, high = (np.asarray(bound, dtype=np.float32).reshape(-1) for bound in (action_space.low, action_space.high))
        return Spaces(size, (), low, high)
    raise ValueError(
        f"env.id is {env_id!r}: its actions are {_name(action_space)}, which is not supported; {_ACTIONS} are"
    )


def _observation_problem(space: Space[Any]) -> str | None:
    """The part of `space` that is not supported, in words."""
    if isinstance(space, Tuple):
        return next((problem for part in space.spaces if (problem := _observation_problem(part))), None)
    if isinstance(space, Box):
        return f"images ({_name(space)})" if space.dtype == np.uint8 and len(space.shape) == 3 else None
    return None if isinstance(space, Discrete) else _name(space)


def _name(space: Space[Any]) -> str:
    if isinstance(space, Box):
        return f"Box of shape {space.shape} and type {space.dtype}"
    return type(space).__name__


def flat_dtype(space: Space[Any]) -> np.dtype[Any]:
    """Float32, or float64 where the observations have it."""
    if isinstance(space, Tuple):
        return np.result_type(*map(flat_dtype, space.spaces))
    return np.dtype(np.float64) if space.dtype == np.float64 else np.dtype(np.float32)


def flattener(space: Space[Any]) -> Callable[[Any], Any] | None:
    """A function from one observation to its row `[O]`; None where an observation already is one."""
    if isinstance(space, Box) and len(space.shape) == 1:
        return None
    if isinstance(space, Discrete):
        rows, start = np.eye(int(space.n), dtype=np.float32), int(space.start)
        return lambda observation: rows[observation - start]
    dtype = flat_dtype(space)
    return lambda observation: np.asarray(flatten(space, observation), dtype=dtype)


def batch_flattener(space: Space[Any]) -> Callable[[Any], Any]:
    """A function from a batch of observations of the single-environment `space`, `[B, …]` each, to rows `[B, O]`, which may be the
    batch itself.
    """
    if isinstance(space, Box) and len(space.shape) == 1 and space.dtype == flat_dtype(space):
        return lambda batch: batch
    if isinstance(space, Discrete):
        rows, start = np.eye(int(space.n), dtype=np.float32), int(space.start)
        return lambda batch: rows[batch - start]
    if isinstance(space, Tuple):
        parts = [batch_flattener(part) for part in space.spaces]
        return lambda batch: np.concatenate([part(rows) for part, rows in zip(parts, batch, strict=True)], axis=1)
    size, dtype = flatdim(space), flat_dtype(space)
    return lambda batch: batch.reshape(-1, size).astype(dtype, copy=False)


def action_converter(space: Space[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """A function from a batch of actions, `[B]` int64 from 0 or `[B, A]`, to a fresh array as the single `space` wants it."""
    if isinstance(space, Discrete):
        start, integer = int(space.start), space.dtype
        return lambda actions: (actions + start if start else actions).astype(integer)
    assert isinstance(space, Box)
    shape, dtype = space.shape, space.dtype
    if len(shape) == 1:
        return lambda actions: actions.astype(dtype)
    return lambda actions: actions.astype(dtype).reshape(-1, *shape)
