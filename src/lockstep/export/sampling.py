"""Random observations for testing an exported policy, from the range of the agent's observations."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim
from numpy.typing import NDArray

from lockstep.algorithm.agent import Agent
from lockstep.envs.layout import ObservationLayout
from lockstep.envs.spaces import MASK, Path, feature_leaves, image_leaves, mask_leaves
from lockstep.export.formats import Arrays
from lockstep.export.tensor_spec import INFO_MASK, OBSERVATION, name_of

__all__ = ["ObservationSampler"]

_FAR, _FAR_TIMES = 1 / 16, 30
"""Fraction of numbers that are sampled with a larger standard deviation, to exceed the range of normalization, and the
factor on the standard deviation.
"""
_WIDE = 1e3
"""Bounds beyond this value say little about actual observations."""


class ObservationSampler:
    """Sampler of observations of a space for an agent."""

    def __init__(self, agent: Agent, space: Space[Any], generator: np.random.Generator) -> None:
        self._agent, self._space, self._generator = agent, space, generator
        self._layout = ObservationLayout(space, agent.spaces)

    def inputs(self, count: int) -> Arrays:
        """Return the inputs of the exported policy by name, without the state."""
        inputs, column = Arrays(), 0
        for path, leaf in feature_leaves(self._space):
            inputs[name_of(OBSERVATION, path)] = self._feature(leaf, count, column)
            column += flatdim(leaf)
        for path, leaf in image_leaves(self._space):
            shape = (count, *leaf.shape)
            inputs[name_of(OBSERVATION, path)] = self._generator.integers(0, 256, shape, np.uint8)
        return inputs | self._masks(count)

    def encoded(self, inputs: Arrays) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the same observations as rows and pixels, encoded as for the agent."""
        tree = _tree(self._space, inputs)
        rows = self._layout.rows(tree, {MASK: inputs[INFO_MASK]} if INFO_MASK in inputs else {})
        pixels = torch.from_numpy(np.array(self._layout.batch_pixels(tree))) if self._agent.spaces.images else None
        return torch.from_numpy(np.array(rows)).to(self._agent.dtype), pixels

    def _feature(self, leaf: Any, count: int, column: int) -> NDArray[Any]:
        """Draw values of a leaf for `count` environments. Its columns in a row begin at `column`."""
        generator, shape = self._generator, (count, *leaf.shape)
        if isinstance(leaf, MultiBinary):
            return generator.integers(0, 2, shape).astype(leaf.dtype)
        if isinstance(leaf, Discrete | MultiDiscrete):
            options = leaf.n if isinstance(leaf, Discrete) else leaf.nvec
            return np.asarray(generator.integers(0, options, shape) + leaf.start).astype(leaf.dtype)
        low, high = leaf.low.astype(np.float64), leaf.high.astype(np.float64)
        numbers = generator.standard_normal(shape) * np.where(generator.random(shape) < _FAR, _FAR_TIMES, 1)
        statistics = self._agent.observation_statistics
        if statistics is not None:
            columns = slice(column, column + flatdim(leaf))
            numbers = numbers * statistics.std[columns].numpy().reshape(leaf.shape)
            numbers += statistics.mean[columns].numpy().reshape(leaf.shape)
        else:
            narrow = (low > -_WIDE) & (high < _WIDE)
            bounded = generator.uniform(np.where(narrow, low, 0), np.where(narrow, high, 1), shape)
            numbers = np.where(narrow, bounded, numbers)
        return np.asarray(np.clip(numbers, low, high)).astype(leaf.dtype)

    def _masks(self, count: int) -> Arrays:
        """Draw an action mask that allows at least one option of each choice."""
        spaces = self._agent.spaces
        if not spaces.mask_size:
            return {}
        mask = self._generator.random((count, spaces.mask_size)) < 0.5
        for begin, options in zip(np.cumsum([0, *spaces.choices]), spaces.choices, strict=False):
            mask[np.arange(count), begin + self._generator.integers(0, options, count)] = True
        parts = mask_leaves(self._space)
        if not parts:
            return {INFO_MASK: mask.astype(np.int8)}
        places = pairwise(np.cumsum([0, *(flatdim(leaf) for _, leaf in parts)]))
        return {
            name_of(OBSERVATION, path): mask[:, begin:end].reshape(count, *leaf.shape).astype(leaf.dtype)
            for (path, leaf), (begin, end) in zip(parts, places, strict=True)
        }


def _tree(space: Space[Any], inputs: Arrays, path: Path = ()) -> Any:
    if isinstance(space, Dict):
        return {key: _tree(part, inputs, (*path, key)) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_tree(part, inputs, (*path, index)) for index, part in enumerate(space.spaces))
    return inputs[name_of(OBSERVATION, path)]
