"""Values of a program, and strided views of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Unsupported", "Value", "View", "collapse"]

_DIMENSIONS = 6
"""Greatest number of dimensions in `interpreter.cpp`."""


class Unsupported(RuntimeError):
    """A formula needs something that the interpreter does not have."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the interpreter of kernels does not support {what}; use --runtime.compile off")


@dataclass(eq=False)
class Value:
    """Numbers in consecutive memory: an argument, a constant, or what instructions write."""

    size: int
    array: int | None = None
    """Index of its array. None until an address in the working memory is assigned; values that live within one fusion never have one."""
    offset: int = 0
    """Place of the first number in the array, or in `whole`."""
    whole: "Value | None" = None
    """The value that has this one as a part, until both have an array."""
    written_by: int | None = None
    """Index of the last instruction that writes it; None if none does."""
    is_bytes: bool = False
    """True for an argument of dtype uint8, which only element-wise operations read."""


class View(NamedTuple):
    """Strided view of a value. Offset and strides count numbers."""

    value: Value
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def contiguous(cls, value: Value, sizes: tuple[int, ...] | None = None) -> "View":
        """View all numbers of a value in the order of memory, by default as a vector."""
        sizes = (value.size,) if sizes is None else sizes
        return cls(value, 0, sizes, tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes))))

    @property
    def is_contiguous(self) -> bool:
        """True if the elements are next to each other."""
        expected = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def fits(self) -> bool:
        """True if all elements are numbers of the value."""
        if 0 in self.sizes:
            return True
        steps = [(size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True)]
        first = self.offset + sum(step for step in steps if step < 0)
        return first >= 0 and self.offset + sum(step for step in steps if step > 0) < self.value.size

    @property
    def is_uniform(self) -> bool:
        """True if all elements are the same number in memory."""
        return all(size == 1 or stride == 0 for size, stride in zip(self.sizes, self.strides, strict=True))

    @property
    def address(self) -> tuple[int, int]:
        """Index of the array, and offset in it. Only when memory has been assigned."""
        if self.value.size == 0:
            return 0, 0
        assert self.value.array is not None
        return self.value.array, self.value.offset + self.offset


def collapse(sizes: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Merge adjacent dimensions that are contiguous in all arrays. At least one dimension remains; that of empty arrays has size 0."""
    if 0 in sizes:
        return (0,), ((1,),) * len(strides)
    kept: list[list[int]] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if kept and kept[-1][1:] == [step * size for step in steps]:
            kept[-1] = [kept[-1][0] * size, *steps]
        else:
            kept.append([size, *steps])
    if len(kept) > _DIMENSIONS:
        raise Unsupported(f"arrays of {len(kept)} dimensions")
    columns = list(zip(*(kept or [[1, *(1 for _ in strides)]]), strict=True))
    return columns[0], tuple(columns[1:])
