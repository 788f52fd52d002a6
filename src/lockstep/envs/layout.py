"""Layout of observations: features and mask in a row of numbers, images in a row of bytes.

A row of numbers concatenates all Boxes of numbers, Discretes and MultiDiscretes (one-hot) and MultiBinaries, in the
order of the space's parts, then the mask. Float32 and float64 keep their type; everything else becomes float32. A row
of bytes concatenates the images, which are uint8 Boxes of 2 to 4 dimensions, each as (channels, height, width).
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

from lockstep.envs.spaces import MASK, Path, Spaces, channels_last, feature_leaves, image_leaves, mask_leaves, place_of

__all__ = ["ContractViolation", "ObservationLayout"]

Info = Mapping[str, Any]
Encode = Callable[[NDArray[Any]], NDArray[Any]]
"""Function from the values of a leaf in N observations, `[N, …]`, to their columns `[N, size]`."""


class ContractViolation(ValueError):
    """An environment violated its spaces or Gymnasium's API. The message follows the name of the environment."""


class ObservationLayout:
    """Converter of observations to rows, one at a time or in batches.

    Its methods raise ContractViolation for observations outside the space, as far as the conversion notices it, and for
    masks that forbid all options of a choice.
    """

    def __init__(self, space: Space[Any], spaces: Spaces) -> None:
        """Create the layout of `space`; `spaces` is the result of `describe` for it."""
        self._leaves = [*feature_leaves(space), *image_leaves(space), *mask_leaves(space)]
        self._features = [(path, leaf, _encoder(leaf)) for path, leaf in feature_leaves(space)]
        self._images = image_leaves(space)
        self._masks = [path for path, _ in mask_leaves(space)]
        self._choices = list(pairwise([0, *np.cumsum(spaces.choices)])) if spaces.mask_size else []
        self._size = spaces.observation_size
        dtypes = [leaf.dtype if leaf.dtype == np.float64 else np.float32 for _, leaf in feature_leaves(space)]
        self.dtype: np.dtype[Any] = np.result_type(*dtypes) if dtypes else np.dtype(np.float32)
        """Type of rows: float32 or float64."""
        self.plain = isinstance(space, Box) and len(space.shape) == 1 and not spaces.mask_size
        """True if an observation already is its row, except perhaps for its type."""
        self._one_hot: Callable[[Any], Any] | None = None
        self._one_hot_batch: Encode | None = None
        if isinstance(space, Discrete) and not spaces.mask_size:
            self._one_hot, self._one_hot_batch = _one_hot(space), _one_hot_batch(space)

    @property
    def absent_row(self) -> NDArray[Any]:
        """Row `[O]` where there is no observation: zeros, with a mask that allows everything."""
        row = np.zeros(self._size, dtype=self.dtype)
        if self._choices:
            row[self._size - self._choices[-1][1] :] = 1
        return row

    def row(self, observation: Any, info: Info, ended: bool = False) -> Any:
        """Return the row `[O]` of one observation and the info that came with it.

        If the episode has `ended`, the mask may be missing or forbid everything: the row then allows everything.
        """
        if self.plain:
            return observation
        if self._one_hot is not None:
            return self._one_hot(observation)
        row = np.empty((1, self._size), dtype=self.dtype)
        end = 0
        for path, leaf, encode in self._features:
            columns = encode(np.asarray(_part(observation, path, leaf))[np.newaxis])
            row[:, end : (end := end + columns.shape[1])] = columns
        if self._choices:
            mask = _part(observation, (MASK,)) if self._masks else info.get(MASK)
            row[0, end:] = self._mask(None if mask is None else _flat_mask(mask), ended)
        return row[0]

    def rows(self, observations: Any, infos: Info, ended: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Return the rows `[B, O]` of a batch of observations `[B, …]`, with which they may share memory.

        `ended`, `[B]` bool, is as in `row`; None means that no episode has ended.
        """
        if self.plain and observations.dtype == self.dtype:
            return observations  # type: ignore[no-any-return]
        if self._one_hot_batch is not None:
            return self._one_hot_batch(observations)
        parts = [encode(np.asarray(_part(observations, path, leaf))) for path, leaf, encode in self._features]
        if self._choices:
            parts.append(self._masks_of_batch(observations, infos, ended))
        if not parts:
            return np.zeros((len(_part(observations, self._images[0][0])), 0), dtype=self.dtype)
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return rows.astype(self.dtype, copy=False)

    def _masks_of_batch(self, observations: Any, infos: Info, ended: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Return the masks `[B, mask_size]` of a batch."""
        parts = [_part(observations, path) for path in self._masks] or [infos.get(MASK)]
        if any(part is None for part in parts):
            raise ContractViolation(f"returned no {MASK}")
        count = len(parts[0])
        ended = np.zeros(count, dtype=np.bool_) if ended is None else ended
        # Gymnasium stores masks that are tuples in an array of objects
        if getattr(parts[0], "dtype", None) == np.object_:
            parts = [np.array([_flat_mask(mask) for mask in parts[0]])]
        masks = np.concatenate([np.asarray(part).reshape(count, -1) for part in parts], axis=1)
        return np.array([self._mask(mask, end) for mask, end in zip(masks, ended, strict=True)])

    def pixels(self, observation: Any) -> NDArray[np.uint8]:
        """Return the images `[P]` of one observation."""
        parts = [_channels_first(np.asarray(_part(observation, path)), leaf).reshape(-1) for path, leaf in self._images]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.zeros(0, dtype=np.uint8)])

    def batch_pixels(self, observations: Any) -> NDArray[np.uint8]:
        """Return the images `[B, P]` of a batch. The result may share memory with it. Only for a space with images."""
        parts = []
        for path, leaf in self._images:
            images = _channels_first(np.asarray(_part(observations, path)), leaf)
            parts.append(images.reshape(len(images), -1))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def check(self, observation: Any, lead: Sequence[int] = ()) -> None:
        """Raise ContractViolation if shapes or types, after the leading dimensions `lead`, are not those of the space."""
        for path, leaf in self._leaves:
            value = _part(observation, path, leaf)
            array, typed = np.asarray(value), isinstance(value, (np.ndarray, np.generic))
            if array.shape != (*lead, *leaf.shape) or not _fits(array.dtype, leaf, typed):
                raise ContractViolation(
                    _mismatch(path, f"{type(value).__name__} of shape {array.shape} and type {array.dtype}", leaf)
                )

    def _mask(self, mask: NDArray[Any] | None, ended: bool) -> NDArray[Any]:
        """Return the mask as zeros and ones, `[mask_size]`."""
        size = self._choices[-1][1]
        if mask is None or len(mask) != size:
            if ended and mask is None:
                return np.ones(size, dtype=self.dtype)
            actual = f"no {MASK}" if mask is None else f"an {MASK} of {len(mask)} entries"
            raise ContractViolation(f"returned {actual}; expected {size} entries")
        allowed: NDArray[np.bool_] = mask != 0
        for number, (begin, end) in enumerate(self._choices):
            if not allowed[begin:end].any():
                if ended:
                    return np.ones(size, dtype=self.dtype)
                choice = f" of choice {number}" if len(self._choices) > 1 else ""
                raise ContractViolation(f"returned an {MASK} that forbids all {end - begin} options{choice}")
        return allowed.astype(self.dtype)


def _fits(dtype: np.dtype[Any], leaf: Space[Any], typed: bool) -> bool:
    """Return True if `leaf` accepts values of `dtype`.

    If not `typed`, the value is no NumPy array or number, and `dtype` is only NumPy's default for it.
    """
    if not isinstance(leaf, Box):
        return dtype.kind in "biu"
    return np.can_cast(dtype, leaf.dtype, "safe" if typed else "same_kind")


def _part(observation: Any, path: Path, leaf: Space[Any] | None = None) -> Any:
    """Return the part of an observation at `path`. Raises ContractViolation, naming `leaf`, if there is none."""
    try:
        return reduce(getitem, path, observation)
    except (KeyError, IndexError, TypeError):
        raise ContractViolation(_mismatch(path, f"{type(observation).__name__} without this entry", leaf)) from None


def _mismatch(path: Path, actual: str, leaf: Space[Any] | None) -> str:
    location = f" at {place_of(path)}" if path else ""
    expected = f", expected {leaf}" if leaf else ""
    return f"returned an observation outside its observation space{location}: got {actual}{expected}"


def _flat_mask(mask: Any) -> NDArray[Any]:
    """Flatten a mask, or concatenate a tuple of masks, one per choice."""
    return np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple) else np.ravel(mask)


def _channels_first(images: NDArray[Any], leaf: Box) -> NDArray[Any]:
    """Convert images `[…, height, width, channels]` to `[…, channels, height, width]`; return others unchanged."""
    return np.moveaxis(images, -1, -3) if channels_last(leaf) else images


def _one_hot(space: Discrete) -> Callable[[Any], NDArray[Any]]:
    """Return the one-hot encoder of a single value, which looks up a row of a table."""
    table, start, count = np.eye(int(space.n), dtype=np.float32), int(space.start), int(space.n)

    def row(value: Any) -> NDArray[Any]:
        index = value - start
        if not 0 <= index < count:
            raise ContractViolation(_mismatch((), str(value), space))
        return table[index]  # type: ignore[no-any-return]

    return row


def _one_hot_batch(space: Discrete) -> Encode:
    """Return the one-hot encoder of a batch of values."""
    table, start = np.eye(int(space.n), dtype=np.float32), int(space.start)

    def rows(values: NDArray[Any]) -> NDArray[Any]:
        try:
            return table[(values - start).astype(np.uint32)]  # negative numbers become large ones: IndexError
        except IndexError:
            raise ContractViolation(_mismatch((), str(values.tolist()), space)) from None

    return rows


def _encoder(space: Space[Any]) -> Encode:
    """Return the encoder of a batch of a leaf's values: one-hot for Discrete and MultiDiscrete, else flattened."""
    if not isinstance(space, (Discrete, MultiDiscrete)):
        size = flatdim(space)
        return lambda values: values.reshape(len(values), size)
    counts = np.atleast_1d(np.ravel(space.n if isinstance(space, Discrete) else space.nvec)).astype(np.int64)
    starts = np.ravel(space.start).astype(np.int64)
    offsets, size = np.cumsum(counts) - counts, int(counts.sum())

    def encode(values: NDArray[Any]) -> NDArray[Any]:
        indices = values.reshape(len(values), -1).astype(np.int64) - starts
        if ((indices < 0) | (indices >= counts)).any():
            raise ContractViolation(_mismatch((), str(values.tolist()), space))
        rows = np.zeros((len(values), size), dtype=np.float32)
        np.put_along_axis(rows, indices + offsets, 1, axis=1)
        return rows

    return encode
