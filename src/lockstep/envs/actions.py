"""Conversion of the action rows of a policy into the actions that environments accept.

An action that is a single choice is an integer that starts at 0. Any other action is a row: first all choices, each an
integer that starts at 0, then all continuous components, both in the order of the action space's parts.
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

Converter = Callable[[NDArray[Any]], Any]
"""Function from a batch of action rows to a batch of actions in the structure of an action space."""


def action_converter(space: Space[Any]) -> Converter:
    """Return a function that converts action rows, `[B]` int64 or `[B, A]`, to new arrays in the structure of `space`.

    That is a dict or tuple of arrays for Dict and Tuple, else one array. Continuous components within the float32
    bounds of `Spaces` are converted to values within the bounds of `space`.
    """
    if isinstance(space, Discrete):
        return _discrete_converter(space)
    if isinstance(space, Box):
        return _box_converter(space)
    next_columns = [0, 0]
    for _, leaf in leaves(space):
        if not isinstance(leaf, Box):
            next_columns[1] += _column_count(leaf)
    convert = _structure_converter(space, next_columns)
    return lambda actions: convert(actions if actions.ndim == 2 else actions[:, np.newaxis])


def each_action(batch: Any) -> Any:
    """Split a batch that `action_converter` produced into one action per environment. Integers become Python's int, with which
    environments are faster than with NumPy's.
    """
    if isinstance(batch, dict):
        return [dict(zip(batch, parts, strict=True)) for parts in zip(*map(each_action, batch.values()), strict=True)]
    if isinstance(batch, tuple):
        return list(zip(*map(each_action, batch), strict=True))
    return batch.tolist() if batch.ndim == 1 else batch


def _discrete_converter(space: Discrete) -> Converter:
    start, dtype = int(space.start), space.dtype
    return lambda actions: (actions + start if start else actions).astype(dtype)


def _box_converter(space: Box) -> Converter:
    shape, dtype = space.shape, space.dtype
    if not has_float32_bounds(space):
        # policies know the bounds as float32, which may lie outside of the space
        return lambda actions: actions.astype(dtype).reshape(-1, *shape).clip(space.low, space.high)
    if len(shape) == 1:
        return lambda actions: actions.astype(dtype)
    return lambda actions: actions.astype(dtype).reshape(-1, *shape)


def _structure_converter(space: Space[Any], next_columns: list[int]) -> Converter:
    """Return the converter of a space.

    `next_columns` has the columns of the next choice and of the next continuous component. It is advanced in place.
    """
    if isinstance(space, Dict):
        by_key = {key: _structure_converter(part, next_columns) for key, part in space.spaces.items()}
        return lambda rows: {key: convert(rows) for key, convert in by_key.items()}
    if isinstance(space, Tuple):
        parts = [_structure_converter(part, next_columns) for part in space.spaces]
        return lambda rows: tuple(convert(rows) for convert in parts)
    kind, width = int(isinstance(space, Box)), _column_count(space)
    columns = slice(next_columns[kind], next_columns[kind] + width)
    next_columns[kind] += width
    if isinstance(space, Box):
        convert_box = _box_converter(space)
        return lambda rows: convert_box(rows[:, columns])
    shape, dtype = space.shape or (), space.dtype
    start = np.asarray(getattr(space, "start", 0))
    return lambda rows: rows[:, columns].reshape(-1, *shape).astype(dtype) + start.astype(dtype)


def _column_count(space: Space[Any]) -> int:
    if isinstance(space, (MultiDiscrete, MultiBinary)):
        return int(np.prod(space.shape))
    return 1 if isinstance(space, Discrete) else flatdim(space)
