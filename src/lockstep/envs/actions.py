"""From the rows that a policy gives to the actions that environments take.

An action that is one choice is a whole number from 0. Any other is a row: first all choices, each a whole number from 0, then all
continuous components, both in the order of the action space's parts.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim
from numpy.typing import NDArray

from lockstep.envs.spaces import has_float32_bounds, leaves

__all__ = ["action_converter", "each_action"]

Change = Callable[[NDArray[Any]], Any]


def action_converter(space: Space[Any]) -> Change:
    """A function from a batch of actions, `[B]` int64 or `[B, A]`, to what `B` environments with that action space take.

    It gives fresh arrays, in the structure of the space: a dict or tuple of arrays for Dict and Tuple, else one array. Continuous components
    that lie within the bounds of `Spaces` lie within those of the space.
    """
    if isinstance(space, Discrete):
        return _alone(space)
    if isinstance(space, Box):
        return _continuous(space)
    columns = [0, 0]
    for _, leaf in leaves(space):
        if not isinstance(leaf, Box):
            columns[1] += _width(leaf)
    build = _builder(space, columns)
    return lambda actions: build(actions if actions.ndim == 2 else actions[:, np.newaxis])


def each_action(taken: Any) -> Any:
    """One action per environment, of what `action_converter` gave: whole numbers as int, which environments check and index with
    faster than NumPy's.
    """
    if isinstance(taken, dict):
        return [dict(zip(taken, parts, strict=True)) for parts in zip(*map(each_action, taken.values()), strict=True)]
    if isinstance(taken, tuple):
        return list(zip(*map(each_action, taken), strict=True))
    return taken.tolist() if taken.ndim == 1 else taken


def _alone(space: Discrete) -> Change:
    start, integer = int(space.start), space.dtype
    return lambda actions: (actions + start if start else actions).astype(integer)


def _continuous(space: Box) -> Change:
    shape, dtype = space.shape, space.dtype
    if not has_float32_bounds(space):
        # policies know the bounds as float32, which may lie outside of the space
        return lambda actions: actions.astype(dtype).reshape(-1, *shape).clip(space.low, space.high)
    if len(shape) == 1:
        return lambda actions: actions.astype(dtype)
    return lambda actions: actions.astype(dtype).reshape(-1, *shape)


def _builder(space: Space[Any], columns: list[int]) -> Change:
    """`columns`: where the next choice and the next continuous component are; moved on."""
    if isinstance(space, Dict):
        named = {key: _builder(part, columns) for key, part in space.spaces.items()}
        return lambda rows: {key: build(rows) for key, build in named.items()}
    if isinstance(space, Tuple):
        parts = [_builder(part, columns) for part in space.spaces]
        return lambda rows: tuple(build(rows) for build in parts)
    kind, width = int(isinstance(space, Box)), _width(space)
    own = slice(columns[kind], columns[kind] + width)
    columns[kind] += width
    if isinstance(space, Box):
        convert = _continuous(space)
        return lambda rows: convert(rows[:, own])
    shape, integer = space.shape or (), space.dtype
    start = np.asarray(getattr(space, "start", 0))
    return lambda rows: rows[:, own].reshape(-1, *shape).astype(integer) + start.astype(integer)


def _width(space: Space[Any]) -> int:
    """Columns of a row."""
    if isinstance(space, (MultiDiscrete, MultiBinary)):
        return int(np.prod(space.shape))
    return 1 if isinstance(space, Discrete) else flatdim(space)
