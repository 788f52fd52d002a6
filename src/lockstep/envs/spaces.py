"""Sizes of an environment's spaces, and the traversal of Gymnasium's spaces."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim
from numpy.typing import NDArray

__all__ = [
    "MASK",
    "Leaf",
    "Spaces",
    "as_float32",
    "batch_entry",
    "channels_last",
    "describe",
    "feature_leaves",
    "has_float32_bounds",
    "image_leaves",
    "leaves",
    "mask_leaves",
    "place_of",
]

MASK = "action_mask"
"""Key of the action mask, in a Dict observation or in `info`."""
_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of these"
Path = tuple[str | int, ...]
"""Keys and indices that lead to a part of a space, and to the same part of its observations or actions."""
Leaf = tuple[Path, Any]
"""Path and space of a leaf, a space without subspaces."""


@dataclass(frozen=True, eq=False)
class Spaces:
    """The sizes of an environment's observations and actions.

    An observation is a row of `O` numbers, first its features and then the mask, and `P` bytes of images. An action is
    a row of `A` numbers: first one integer per choice, from 0, then the continuous components.
    """

    observation_size: int
    """Size `O` of a row: flattened features, then the mask."""
    choices: tuple[int, ...]
    """Number of options of each discrete component of an action."""
    action_low: NDArray[np.float32]
    """Lower bounds `[continuous components]`, rounded to float32; may be -inf."""
    action_high: NDArray[np.float32]
    """Upper bounds `[continuous components]`, rounded to float32; may be inf."""
    images: tuple[tuple[int, int, int], ...] = ()
    """Shapes (channels, height, width) of the images, in the order of their bytes in `P`."""
    mask_size: int = 0
    """Number of mask columns at the end of a row, one per option of each choice: 1 if allowed. 0 without a mask."""
    frames_per_step: int = 1
    """Frames of an Atari game per step; 1 for other environments."""

    @property
    def feature_size(self) -> int:
        """Number of columns of a row that are inputs of the networks."""
        return self.observation_size - self.mask_size

    @property
    def pixel_count(self) -> int:
        """Number `P` of bytes in the images of an observation."""
        return sum(math.prod(shape) for shape in self.images)

    @property
    def continuous_size(self) -> int:
        """Number of continuous components of an action."""
        return len(self.action_low)

    @property
    def action_size(self) -> int:
        """Number `A` of columns in the row of an action."""
        return len(self.choices) + self.continuous_size

    @property
    def discrete_actions(self) -> int | None:
        """Number of options if an action is a single choice, and so a batch `[B]` integers; None for other actions."""
        return self.choices[0] if self.action_size == len(self.choices) == 1 else None


def describe(
    observation_space: Space[Any],
    action_space: Space[Any],
    env_id: str,
    info: Mapping[str, Any] | None = None,
    frames_per_step: int = 1,
) -> Spaces:
    """Return the sizes of the spaces of a single environment.

    `info` is that of a reset, which may contain a mask. `frames_per_step` is the number of frames per step of an Atari
    game. Raises ValueError, in one line that names the part, for a space or a mask that is not supported.
    """
    for kind, space in (("observations", observation_space), ("actions", action_space)):
        for path, leaf in leaves(space):
            if not _is_supported(leaf, kind):
                name = type(leaf).__name__
                if isinstance(leaf, Box):
                    name = f"Box of shape {leaf.shape} and type {leaf.dtype}"
                contents = f"have a {name} in {place_of(path)}" if path else f"are {name}"
                raise ValueError(
                    f"env.id is {env_id!r}: its {kind} {contents}, which is not supported; supported spaces: {_SUPPORTED}"
                )
    choices, bounds = [], [np.zeros((2, 0), dtype=np.float32)]
    for _, leaf in leaves(action_space):
        if isinstance(leaf, Box):
            bounds.append(as_float32(np.array([leaf.low, leaf.high])).reshape(2, -1))
        else:
            choices += _options(leaf)
    low, high = np.concatenate(bounds, axis=1)
    mask_size = _mask_size(observation_space, info)
    if mask_size and mask_size != sum(choices):
        raise ValueError(
            f"env.id is {env_id!r}: its {MASK} has {mask_size} entries, but the choices of its actions have {sum(choices)} options"
        )
    features = sum(flatdim(leaf) for _, leaf in feature_leaves(observation_space))
    images = tuple(_image_shape(leaf) for _, leaf in image_leaves(observation_space))
    if not features and not images:
        raise ValueError(f"env.id is {env_id!r}: its observations are empty")
    if not choices and not low.size:
        raise ValueError(f"env.id is {env_id!r}: its actions are empty")
    return Spaces(features + mask_size, tuple(choices), low, high, images, mask_size, frames_per_step)


def has_float32_bounds(space: Box) -> bool:
    """Return True if float32 represents all bounds exactly. If not, actions must be clipped in the type of the space."""
    return all(np.array_equal(bound, as_float32(bound)) for bound in (space.low, space.high))


def as_float32(bounds: NDArray[Any]) -> NDArray[np.float32]:
    """Round bounds to float32; bounds beyond the largest float32 number become infinite."""
    with np.errstate(over="ignore"):
        return bounds.astype(np.float32)


def leaves(space: Space[Any], path: Path = ()) -> Iterator[Leaf]:
    """Yield the leaves of a space: all its parts without subspaces, in the order of Dict keys and Tuple indices."""
    if isinstance(space, Dict):
        for key, part in space.spaces.items():
            yield from leaves(part, (*path, key))
    elif isinstance(space, Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaves(part, (*path, index))
    else:
        yield path, space


def feature_leaves(space: Space[Any]) -> list[Leaf]:
    """Return the leaves of an observation space that become features."""
    return [leaf for leaf in leaves(space) if not _is_image(leaf[1]) and leaf[0][:1] != (MASK,)]


def image_leaves(space: Space[Any]) -> list[Leaf]:
    """Return the leaves of an observation space that are images."""
    return [leaf for leaf in leaves(space) if _is_image(leaf[1]) and leaf[0][:1] != (MASK,)]


def mask_leaves(space: Space[Any]) -> list[Leaf]:
    """Return the leaves of an observation space that are parts of the action mask."""
    return [leaf for leaf in leaves(space) if leaf[0][:1] == (MASK,)]


def _image_shape(space: Box) -> tuple[int, int, int]:
    """Return (channels, height, width) of an image space.

    Channels are the first dimension if it is the shortest, else the last; an image of 2 dimensions has 1 channel. A stack
    of images has 4 dimensions, the first of which counts the images: it becomes one image with the channels of all.
    """
    if len(space.shape) == 2:
        return 1, *space.shape
    *count, first, second, third = space.shape
    channels, height, width = (third, first, second) if channels_last(space) else (first, second, third)
    return math.prod(count) * channels, height, width


def channels_last(space: Box) -> bool:
    """Return True if the images of a space are stored as (height, width, channels)."""
    return len(space.shape) > 2 and space.shape[-3] != min(space.shape[-3:])


def batch_entry(batch: Any, index: int) -> Any:
    """Return the entry of one environment; `batch` may also be an array of objects, one per environment."""
    if isinstance(batch, Mapping):
        return {key: batch_entry(part, index) for key, part in batch.items()}
    return tuple(batch_entry(part, index) for part in batch) if isinstance(batch, tuple) else np.asarray(batch)[index]


def place_of(path: Path) -> str:
    """Format a path as in Python code: `['camera'][0]`."""
    return "".join(f"[{key!r}]" for key in path)


def _is_image(space: Space[Any]) -> bool:
    return isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3, 4)


def _options(space: Space[Any]) -> list[int]:
    """Return the number of options of each choice in a space without subspaces."""
    if isinstance(space, Discrete):
        return [int(space.n)]
    if isinstance(space, MultiDiscrete):
        return [int(options) for options in space.nvec.flat]
    assert isinstance(space, MultiBinary)
    return [2] * math.prod(space.shape)


def _mask_size(observation_space: Space[Any], info: Mapping[str, Any] | None) -> int:
    """Return the number of entries of the mask; 0 if there is none."""
    parts = mask_leaves(observation_space)
    if parts:
        return sum(math.prod(leaf.shape) for _, leaf in parts)
    mask = None if info is None else info.get(MASK)
    if mask is None:
        return 0
    return sum(np.size(part) for part in mask) if isinstance(mask, tuple) else np.size(mask)


def _is_supported(space: Space[Any], kind: str) -> bool:
    if not isinstance(space, Box):
        return isinstance(space, (Discrete, MultiDiscrete, MultiBinary))
    if kind == "actions":
        return np.issubdtype(space.dtype, np.floating)
    return space.dtype != np.uint8 or len(space.shape) <= 4
