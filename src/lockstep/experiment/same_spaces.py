"""Check that all ranks have environments with the same spaces, before they exchange tensors whose shapes follow from them."""

import hashlib
from collections.abc import Sequence

import torch

from lockstep.algorithm.exchange import leading_bits
from lockstep.envs.spaces import Spaces
from lockstep.group.group import Group

__all__ = ["SpacesDiffer", "check_same_spaces"]


_SIZES = (
    "numbers per observation",
    "bytes of images per observation",
    "choices per action",
    "continuous components per action",
)
"""Sizes that ranks compare, besides the digest."""


class SpacesDiffer(ValueError):
    """Two ranks have environments with different spaces. All ranks raise it together."""


def check_same_spaces(group: Group, spaces: Spaces, env_id: str) -> None:
    """Raise SpacesDiffer, in one line, on all ranks if `spaces` is not the same on all ranks of the group."""
    sizes = (spaces.observation_size, spaces.pixel_count, len(spaces.choices), spaces.continuous_size)
    text = repr((sizes, spaces.choices, spaces.images, spaces.mask_size))
    content = text.encode() + spaces.action_low.tobytes() + spaces.action_high.tobytes()
    bits = leading_bits(hashlib.sha256(content).hexdigest())
    first, *others = group.gather(torch.tensor([[*sizes, bits]], dtype=torch.float64), "start").tolist()
    for rank, other in enumerate(others, 1):
        if other != first:
            raise SpacesDiffer(
                f"env.id is {env_id!r}: rank {rank} has other spaces than rank 0 ({_difference(other, first)}); the environment, "
                "its wrappers and the versions of its packages must be the same on all ranks"
            )


def _difference(row: Sequence[float], first: Sequence[float]) -> str:
    sizes = zip(_SIZES, row, first, strict=False)
    found = [f"{size:g} instead of {expected:g} {name}" for name, size, expected in sizes if size != expected]
    return ", ".join(found) or "other bounds, options or shapes"
