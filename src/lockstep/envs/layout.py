"""Where the parts of an observation lie: its features and mask in a row of numbers, its images in a row of bytes.

All Boxes of numbers, one-hot Discretes and MultiDiscretes and MultiBinaries lie side by side, in the order of the space's parts, then
the mask. Float32 and float64 keep their type; everything else becomes float32. Images, which are uint8 Boxes of 2 or 3 dimensions, lie
one after the other, each as (channels, height, width).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import getitem
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.spaces.utils import flatdim
from numpy.typing import NDArray

from lockstep.envs.spaces import (
    MASK,
    Path,
    Spaces,
    feature_leaves,
    image_leaves,
    image_shape,
    mask_leaves,
    place_of,
)

__all__ = ["ContractViolation", "ObservationLayout"]

Info = Mapping[str, Any]
Encode = Callable[[NDArray[Any]], NDArray[Any]]
"""A batch of a leaf's values `[N, …]` to its columns `[N, size]`."""


class ContractViolation(ValueError):
    """An environment broke its spaces or Gymnasium's API. The message continues a line that names the environment."""


class ObservationLayout:
    """Reads the observations of one observation space, one at a time or batches of them.

    Raises Unkept when an observation is none of the space's, as far as that shows at no cost, and for a mask that allows nothing.
    """

    def __init__(self, space: Space[Any], spaces: Spaces) -> None:
        """`spaces` is what `describe` made of `space`."""
        self._leaves = [*feature_leaves(space), *image_leaves(space), *mask_leaves(space)]
        self._features = [(path, leaf, _encoder(leaf)) for path, leaf in feature_leaves(space)]
        self._images = image_leaves(space)
        self._masks = [path for path, _ in mask_leaves(space)]
        self._choices = list(pairwise([0, *np.cumsum(spaces.choices)])) if spaces.mask_size else []
        self._size = spaces.observation_size
        kinds = [leaf.dtype if leaf.dtype == np.float64 else np.float32 for _, leaf in feature_leaves(space)]
        self.dtype: np.dtype[Any] = np.result_type(*kinds) if kinds else np.dtype(np.float32)
        """Of rows."""
        self.plain = isinstance(space, Box) and len(space.shape) == 1 and not spaces.mask_size
        """An observation already is its row, but perhaps for its type."""
        self._one_hot: Callable[[Any], Any] | None = None
        self._one_hots: Encode | None = None
        if isinstance(space, Discrete) and not spaces.mask_size:
            self._one_hot, self._one_hots = _one_hot(space), _one_hots(space)

    def row(self, observation: Any, info: Info, over: bool = False) -> Any:
        """`[O]` of one observation and the info that came with it; what is allowed when the episode is `over` does not matter."""
        if self.plain:
            return observation
        if self._one_hot is not None:
            return self._one_hot(observation)
        row = np.empty((1, self._size), dtype=self.dtype)
        end = 0
        for path, leaf, encode in self._features:
            columns = encode(np.asarray(_at(observation, path, leaf))[np.newaxis])
            row[:, end : (end := end + columns.shape[1])] = columns
        if self._choices:
            given = _at(observation, (MASK,)) if self._masks else info.get(MASK)
            row[0, end:] = self._mask(None if given is None else _joined(given), over)
        return row[0]

    def rows(self, observations: Any, infos: Info, over: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """`[B, O]` of a batch, each part `[B, …]`, in an array that may be the batch's; `over` is `[B]`."""
        if self.plain and observations.dtype == self.dtype:
            return observations  # type: ignore[no-any-return]
        if self._one_hots is not None:
            return self._one_hots(observations)
        parts = [encode(np.asarray(_at(observations, path, leaf))) for path, leaf, encode in self._features]
        if self._choices:
            given = [_at(observations, path) for path in self._masks] or [infos.get(MASK)]
            if any(part is None for part in given):
                raise ContractViolation(f"gave no {MASK}")
            count = len(given[0])
            ended = np.zeros(count, dtype=np.bool_) if over is None else over
            # Gymnasium makes an array of objects of what are tuples
            if getattr(given[0], "dtype", None) == np.object_:
                given = [np.array([_joined(mask) for mask in given[0]])]
            masks = np.concatenate([np.asarray(part).reshape(count, -1) for part in given], axis=1)
            parts.append(np.array([self._mask(mask, end) for mask, end in zip(masks, ended, strict=True)]))
        if not parts:
            return np.zeros((len(_at(observations, self._images[0][0])), 0), dtype=self.dtype)
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return joined.astype(self.dtype, copy=False)

    def pixels(self, observation: Any) -> NDArray[np.uint8]:
        """`[P]` of one observation."""
        parts = [_channels_first(np.asarray(_at(observation, path)), leaf).reshape(-1) for path, leaf in self._images]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.zeros(0, dtype=np.uint8)])

    def batch_pixels(self, observations: Any) -> NDArray[np.uint8]:
        """`[B, P]` of a batch, in an array that may be the batch's; only where there are images."""
        parts = []
        for path, leaf in self._images:
            images = _channels_first(np.asarray(_at(observations, path)), leaf)
            parts.append(images.reshape(len(images), -1))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def check(self, observation: Any, lead: Sequence[int] = ()) -> None:
        """Raises Unkept if shapes or types are not those of the space; `lead` are the dimensions before those of one observation."""
        for path, leaf in self._leaves:
            value = _at(observation, path, leaf)
            came, typed = np.asarray(value), isinstance(value, (np.ndarray, np.generic))
            if came.shape != (*lead, *leaf.shape) or not _fits(came.dtype, leaf, typed):
                raise ContractViolation(
                    _broken(path, f"{type(value).__name__} of shape {came.shape} and type {came.dtype}", leaf)
                )

    def _mask(self, mask: NDArray[Any] | None, over: bool) -> NDArray[Any]:
        """`[mask_size]` of 0 and 1."""
        size = self._choices[-1][1]
        if mask is None or len(mask) != size:
            if over and mask is None:
                return np.ones(size, dtype=self.dtype)
            raise ContractViolation(
                f"gave {'no ' + MASK if mask is None else f'an {MASK} of {len(mask)} entries'}; {size} were promised"
            )
        allowed: NDArray[np.bool_] = mask != 0
        for number, (begin, end) in enumerate(self._choices):
            if not allowed[begin:end].any():
                if over:
                    return np.ones(size, dtype=self.dtype)
                of = f" of choice {number}" if len(self._choices) > 1 else ""
                raise ContractViolation(f"gave an {MASK} that forbids all {end - begin} options{of}")
        return allowed.astype(self.dtype)


def _fits(kind: np.dtype[Any], leaf: Space[Any], typed: bool) -> bool:
    """Whether values of that type are the leaf's. What is not `typed`, such as a list, has NumPy's default type."""
    if not isinstance(leaf, Box):
        return kind.kind in "biu"
    return np.can_cast(kind, leaf.dtype, "safe" if typed else "same_kind")


def _at(observation: Any, path: Path, leaf: Space[Any] | None = None) -> Any:
    """What is at `path`."""
    try:
        return reduce(getitem, path, observation)
    except (KeyError, IndexError, TypeError):
        raise ContractViolation(_broken(path, f"nothing within {type(observation).__name__}", leaf)) from None


def _broken(path: Path, came: str, leaf: Space[Any] | None) -> str:
    where = f" at {place_of(path)}" if path else ""
    return f"gave an observation that is none of its space{where}: {came} came" + (
        f", {leaf} was promised" if leaf else ""
    )


def _joined(mask: Any) -> NDArray[Any]:
    """A mask, or a tuple or list of one per choice, as one row."""
    return np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple) else np.ravel(mask)


def _channels_first(images: NDArray[Any], leaf: Box) -> NDArray[Any]:
    """`[…, H, W]`, `[…, C, H, W]` or `[…, H, W, C]` to the first or second."""
    if len(leaf.shape) == 3 and image_shape(leaf) != leaf.shape:
        images = np.moveaxis(images, -1, -3)
    return images


def _one_hot(space: Discrete) -> Callable[[Any], NDArray[Any]]:
    """For a single value: the row of a table."""
    table, start, count = np.eye(int(space.n), dtype=np.float32), int(space.start), int(space.n)

    def row(value: Any) -> NDArray[Any]:
        place = value - start
        if not 0 <= place < count:
            raise ContractViolation(_broken((), str(value), space))
        return table[place]  # type: ignore[no-any-return]

    return row


def _one_hots(space: Discrete) -> Encode:
    """For a batch of values."""
    table, start = np.eye(int(space.n), dtype=np.float32), int(space.start)

    def rows(values: NDArray[Any]) -> NDArray[Any]:
        try:
            return table[(values - start).astype(np.uint32)]  # what is below 0 becomes huge
        except IndexError:
            raise ContractViolation(_broken((), str(values.tolist()), space)) from None

    return rows


def _encoder(space: Space[Any]) -> Encode:
    if not isinstance(space, (Discrete, MultiDiscrete)):
        size = flatdim(space)
        return lambda values: values.reshape(-1, size)
    counts = np.atleast_1d(np.ravel(space.n if isinstance(space, Discrete) else space.nvec)).astype(np.int64)
    starts = np.ravel(space.start).astype(np.int64)
    offsets, size = np.cumsum(counts) - counts, int(counts.sum())

    def encode(values: NDArray[Any]) -> NDArray[Any]:
        places = values.reshape(len(values), -1).astype(np.int64) - starts
        if ((places < 0) | (places >= counts)).any():
            raise ContractViolation(_broken((), str(values.tolist()), space))
        rows = np.zeros((len(values), size), dtype=np.float32)
        np.put_along_axis(rows, places + offsets, 1, axis=1)
        return rows

    return encode
