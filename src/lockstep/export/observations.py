"""Encoding observations of the environment as inputs of the networks, in operations that can be exported.

`envs/layout.py` does the same in NumPy. The parts of a space are in its order.
"""

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from torch import Tensor, nn

from lockstep.algorithm.agent import OBSERVATION_LIMIT, Agent
from lockstep.envs.spaces import MASK, Leaf, Spaces, channels_last, feature_leaves, image_leaves, mask_leaves, place_of
from lockstep.export.tensor_spec import INFO_MASK, OBSERVATION, TensorSpec, name_of, torch_type

__all__ = ["ObservationEncoder"]

Inputs = dict[str, Tensor]


class ObservationEncoder(nn.Module):
    """Encoder of inputs by name, `[N, …]` each for N environments.

    Its outputs are normalized rows `[N, O]` and pixels `[N, P]`, None without images.
    """

    _shift: Tensor
    _scale: Tensor

    def __init__(self, agent: Agent, space: Space[object]) -> None:
        super().__init__()
        self._dtype = agent.dtype
        self._spaces = agent.spaces
        features = feature_leaves(space)
        self._features = [(name_of(OBSERVATION, path), leaf) for path, leaf in features]
        self._images = [(name_of(OBSERVATION, path), leaf) for path, leaf in image_leaves(space)]
        self._masks = [name_of(OBSERVATION, path) for path, _ in mask_leaves(space)]
        if agent.spaces.mask_size and not self._masks:
            self._masks = [INFO_MASK]
        self.codes = nn.ModuleList(_OneHot(leaf) for _, leaf in features if isinstance(leaf, Discrete | MultiDiscrete))
        self.specs = _specs(space, agent.spaces)
        """Descriptions of all inputs except the state."""
        statistics = agent.observation_statistics
        self._normalized = statistics is not None
        if statistics is not None:
            self.register_buffer("_shift", statistics.mean.to(self._dtype))
            self.register_buffer("_scale", statistics.std.reciprocal().to(self._dtype))

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Encode inputs by name."""
        codes, columns = iter(self.codes), []
        for name, leaf in self._features:
            read = next(codes) if isinstance(leaf, Discrete | MultiDiscrete) else nn.Identity()
            columns.append(read(_rows(inputs[name])).to(self._dtype))
        pixels = [_rows(_channels_first(inputs[name], leaf)) for name, leaf in self._images]
        allowed = [(_rows(inputs[name]) != 0).to(self._dtype) for name in self._masks]
        seen = torch.cat(columns or [(pixels or allowed)[0][:, :0].to(self._dtype)], 1)
        if self._normalized:
            seen = ((seen - self._shift) * self._scale).clamp(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)
        return torch.cat([seen, *allowed], 1), torch.cat(pixels, 1) if pixels else None


class _OneHot(nn.Module):
    """Encoder of the integers `[N, choices]` of a Discrete or MultiDiscrete as `[N, options of all choices]` bool."""

    _columns: Tensor
    _values: Tensor

    def __init__(self, leaf: Discrete | MultiDiscrete) -> None:
        super().__init__()
        counts = np.atleast_1d(np.ravel(leaf.n if isinstance(leaf, Discrete) else leaf.nvec)).astype(np.int64)
        starts = np.ravel(leaf.start).astype(np.int64)
        values = [start + np.arange(options) for start, options in zip(starts, counts, strict=True)]
        self.register_buffer("_columns", torch.from_numpy(np.repeat(np.arange(len(counts)), counts)))
        self.register_buffer("_values", torch.from_numpy(np.concatenate(values)))

    def forward(self, numbers: Tensor) -> Tensor:
        return numbers.to(torch.int64).index_select(1, self._columns) == self._values


def _rows(array: Tensor) -> Tensor:
    """Return an array `[N, …]` as rows `[N, columns]`.

    Each uses its own sizes only: the number of environments of another input would become a condition in the exported program, which
    batches of one environment do not meet.
    """
    return array.unsqueeze(1) if array.ndim == 1 else array.flatten(1)


def _channels_first(images: Tensor, leaf: Box) -> Tensor:
    return images.movedim(-1, -3) if channels_last(leaf) else images


def _specs(space: Space[object], spaces: Spaces) -> list[TensorSpec]:
    kinds = [
        (feature_leaves(space), ""),
        (image_leaves(space), ", an image"),
        (mask_leaves(space), ", not 0 for options that are allowed"),
    ]
    specs = [_tensor_spec(leaf, note) for kind_leaves, note in kinds for leaf in kind_leaves]
    if spaces.mask_size and not mask_leaves(space):
        meaning = f"info[{MASK!r}], not 0 for options that are allowed: those of all choices side by side"
        specs.append(TensorSpec(INFO_MASK, (spaces.mask_size,), torch.int8, meaning))
    return specs


def _tensor_spec(path_and_leaf: Leaf, note: str) -> TensorSpec:
    path, leaf = path_and_leaf
    meaning = f"observation{place_of(path)} as the environment gives it{note}"
    return TensorSpec(name_of(OBSERVATION, path), leaf.shape, torch_type(leaf.dtype), meaning)
