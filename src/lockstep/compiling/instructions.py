"""Instructions of a program that are not fusions."""

import math
from typing import NamedTuple

from lockstep.compiling.values import Value, View

__all__ = [
    "ADD_COPY",
    "ARGMAX",
    "COPY",
    "FUSION",
    "GATHER",
    "INDEXED_PRODUCT",
    "PACK",
    "PACKED_PRODUCT",
    "PRODUCT",
    "REDUCE",
    "SCATTER_ADD",
    "Single",
    "copied",
]

(
    FUSION,
    COPY,
    REDUCE,
    PRODUCT,
    GATHER,
    SCATTER_ADD,
    PACK,
    PACKED_PRODUCT,
    ARGMAX,
    INDEXED_PRODUCT,
    ADD_COPY,
) = range(11)
"""Kinds of instructions in `interpreter.cpp`."""


class Single(NamedTuple):
    """An instruction that is not a fusion: its words, in which a view stands for its array and its offset."""

    kind: int
    words: tuple[View | int, ...]
    reads: list[Value]
    writes: list[Value]


def copied(copy: Single) -> int:
    """Return the number of elements that a copy writes."""
    dims, *numbers = (word for word in copy.words if isinstance(word, int))
    return math.prod(numbers[:dims])
