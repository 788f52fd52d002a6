"""What the rest of lockstep knows of an environment's spaces: sizes, and nothing of Gymnasium."""

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
    "describe",
    "feature_leaves",
    "has_float32_bounds",
    "image_leaves",
    "image_shape",
    "leaves",
    "mask_leaves",
    "place_of",
]

MASK = "action_mask"
"""The key, of a Dict observation or of `info`, under which an environment says what is allowed."""
_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of these"
Path = tuple[str | int, ...]
"""Keys and indices that lead into a space, and into what it holds."""
Leaf = tuple[Path, Any]
"""A space that holds no others, and where it is."""


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
    """`[continuous components]`, rounded to float32; may be -inf."""
    action_high: NDArray[np.float32]
    """`[continuous components]`, rounded to float32; may be inf."""
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


def describe(
    observation_space: Space[Any],
    action_space: Space[Any],
    env_id: str,
    info: Mapping[str, Any] | None = None,
    frames_per_step: int = 1,
) -> Spaces:
    """The sizes of a single environment's spaces.

    Args:
        observation_space: Of one environment, as `action_space`.
        action_space: See `lockstep.envs.actions` for what its actions become.
        env_id: For messages.
        info: What came with a first observation: it may hold a mask.
        frames_per_step: See `Spaces`.

    Raises ValueError, in one line that names the part, for a space or a mask that is not supported.
    """
    for of, space, problem in (
        ("observations", observation_space, _observation_problem),
        ("actions", action_space, _action_problem),
    ):
        for path, leaf in leaves(space):
            name = problem(leaf)
            if name:
                has = f"have a {name} in {place_of(path)}" if path else f"are {name}"
                raise ValueError(f"env.id is {env_id!r}: its {of} {has}, which is not supported; {_SUPPORTED} are")
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
    images = tuple(image_shape(leaf) for _, leaf in image_leaves(observation_space))
    if not features and not images:
        raise ValueError(f"env.id is {env_id!r}: its observations are empty")
    if not choices and not low.size:
        raise ValueError(f"env.id is {env_id!r}: its actions are empty")
    return Spaces(features + mask_size, tuple(choices), low, high, images, mask_size, frames_per_step)


def has_float32_bounds(space: Box) -> bool:
    """True if float32 represents all bounds exactly. If not, actions must be clipped once more in the type of the space."""
    return all(np.array_equal(bound, as_float32(bound)) for bound in (space.low, space.high))


def as_float32(bounds: NDArray[Any]) -> NDArray[np.float32]:
    """The nearest float32 numbers; beyond the largest one they are infinite."""
    with np.errstate(over="ignore"):
        return bounds.astype(np.float32)


def leaves(space: Space[Any], path: Path = ()) -> Iterator[Leaf]:
    """All spaces within `space` that hold no others, in the order of a Dict's keys and a Tuple's places."""
    if isinstance(space, Dict):
        for key, part in space.spaces.items():
            yield from leaves(part, (*path, key))
    elif isinstance(space, Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaves(part, (*path, index))
    else:
        yield path, space


def feature_leaves(space: Space[Any]) -> list[Leaf]:
    """Those of an observation space that give numbers."""
    return [leaf for leaf in leaves(space) if not _is_image(leaf[1]) and leaf[0][:1] != (MASK,)]


def image_leaves(space: Space[Any]) -> list[Leaf]:
    """Those of an observation space that give images."""
    return [leaf for leaf in leaves(space) if _is_image(leaf[1]) and leaf[0][:1] != (MASK,)]


def mask_leaves(space: Space[Any]) -> list[Leaf]:
    """Those of an observation space that say what is allowed."""
    return [leaf for leaf in leaves(space) if leaf[0][:1] == (MASK,)]


def image_shape(space: Box) -> tuple[int, int, int]:
    """(channels, height, width): the channels come first if that is the shortest dimension, else last."""
    if len(space.shape) == 2:
        return 1, *space.shape
    first, second, third = space.shape
    return (first, second, third) if first == min(space.shape) else (third, first, second)


def place_of(path: Path) -> str:
    """`['camera'][0]`."""
    return "".join(f"[{key!r}]" for key in path)


def _is_image(space: Space[Any]) -> bool:
    return isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)


def _options(space: Space[Any]) -> list[int]:
    """The number of options of each choice."""
    if isinstance(space, Discrete):
        return [int(space.n)]
    if isinstance(space, MultiDiscrete):
        return [int(options) for options in space.nvec.flat]
    assert isinstance(space, MultiBinary)
    return [2] * math.prod(space.shape)


def _mask_size(observation_space: Space[Any], info: Mapping[str, Any] | None) -> int:
    """0 where there is no mask."""
    parts = mask_leaves(observation_space)
    if parts:
        return sum(math.prod(leaf.shape) for _, leaf in parts)
    mask = None if info is None else info.get(MASK)
    if mask is None:
        return 0
    return sum(np.size(part) for part in mask) if isinstance(mask, tuple) else np.size(mask)


def _observation_problem(space: Space[Any]) -> str | None:
    """What it is, if it is not supported."""
    if isinstance(space, Box):
        return _name(space) if space.dtype == np.uint8 and len(space.shape) > 3 else None
    return None if isinstance(space, (Discrete, MultiDiscrete, MultiBinary)) else _name(space)


def _action_problem(space: Space[Any]) -> str | None:
    """What it is, if it is not supported."""
    if isinstance(space, Box):
        return None if np.issubdtype(space.dtype, np.floating) else _name(space)
    return None if isinstance(space, (Discrete, MultiDiscrete, MultiBinary)) else _name(space)


def _name(space: Space[Any]) -> str:
    if isinstance(space, Box):
        return f"Box of shape {space.shape} and type {space.dtype}"
    return type(space).__name__
