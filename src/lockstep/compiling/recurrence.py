"""Linear recurrences over time, in place, with the same bits in C++ and in NumPy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.compiling.library import loaded_interpreter

__all__ = ["recur"]


def recur(rows: NDArray[Any], factors: NDArray[Any], backward: bool = False) -> None:
    """Compute `rows[t + 1] += factors[t] * rows[t]` for ascending t.

    The product and the sum are rounded one after the other. The library of the interpreter computes them, if this process has loaded it.

    Args:
        rows: `[T, N]`, float32 or float64; changed in place.
        factors: `[T - 1, N]` of the same type.
        backward: Compute `rows[t] += factors[t] * rows[t + 1]` for descending t instead.
    """
    steps, width = factors.shape
    assert rows.shape == (steps + 1, width)
    assert rows.dtype == factors.dtype
    library = loaded_interpreter()
    if library is None or not rows.flags.c_contiguous:
        _recur_numpy(rows, factors, backward)
        return
    factors = np.ascontiguousarray(factors)
    recur_type = library.lockstep_recur_float if rows.dtype == np.float32 else library.lockstep_recur_double
    stride, first, first_factors = (-width, steps, max(steps - 1, 0)) if backward else (width, 0, 0)
    size = rows.itemsize * width
    recur_type(steps, width, stride, factors.ctypes.data + first_factors * size, rows.ctypes.data + first * size)


def _recur_numpy(rows: NDArray[Any], factors: NDArray[Any], backward: bool) -> None:
    product = np.empty_like(rows[0])
    pairs = (
        zip(rows[:0:-1], rows[-2::-1], factors[::-1], strict=True)
        if backward
        else zip(rows, rows[1:], factors, strict=False)
    )
    for before, row, factor in pairs:
        np.multiply(factor, before, out=product)
        row += product
