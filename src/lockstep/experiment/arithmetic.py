"""Calculations of 5 ms whose bits show which code paths the numerical libraries use: ranks that differ in them would train to different weights.

A library chooses its code by the processor, by environment variables and by its build. The calculations have the operations of acting, of
learning and of environments, with sizes at which a vector width or a fused multiply-add changes some bit.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

__all__ = ["arithmetic_digests"]

_PRODUCTS = ((1, 3, 64), (1, 64, 64), (16, 17, 64), (32, 64, 5), (16, 64, 64))
"""Rows, inputs and outputs of layers that act, too small for NumPy's library to use several threads."""
_BATCH, _WIDTH = 128, 64
"""Rows and width of a layer that learns."""


def arithmetic_digests() -> dict[str, str]:
    """Return a digest of the results of each library."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # hosts may have different numbers of cores
    try:
        return {
            "PyTorch": _digest([*_torch_results(torch.float32), *_torch_results(torch.float64)]),
            "PyTorch's convolutions": _digest([_convolution()]),
            "NumPy's matrix products": _digest([*_products(np.float32), *_products(np.float64)]),
            "NumPy's functions": _digest([*_functions(np.float32), *_functions(np.float64)]),
            "the C library's functions": _digest([np.array(list(_library_functions()))]),
        }
    finally:
        torch.set_num_threads(threads)


def _digest(arrays: Sequence[NDArray[Any]]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def _numbers(rows: int, columns: int, dtype: Any) -> NDArray[Any]:
    """Return numbers in [-0.5, 0.5), the same everywhere. torch aligns their memory, on which the bits of products may depend."""
    values = ((np.arange(rows * columns) * 7919 % 1013) / 1013 - 0.5).reshape(rows, columns)
    return torch.tensor(values, dtype=torch.from_numpy(np.empty(0, dtype)).dtype).numpy()


def _products(dtype: Any) -> Iterator[NDArray[Any]]:
    for rows, inputs, outputs in _PRODUCTS:
        yield _numbers(rows, inputs, dtype).dot(_numbers(outputs, inputs, dtype).T)


def _functions(dtype: Any) -> Iterator[NDArray[Any]]:
    values = _numbers(4, 257, dtype) * 6
    positive = np.abs(values) + dtype(0.01)
    yield from (np.tanh(values), np.exp(values), np.expm1(values), np.sin(values), np.cos(values))
    yield from (np.log(positive), np.log1p(positive), np.sqrt(positive), positive ** dtype(1.5))
    yield from (np.arctan2(values, values[::-1]), values.sum(0), values.sum(1), values.var(keepdims=True))


def _library_functions() -> Iterator[float]:
    """Yield results of the mathematical functions of Python, which environments call."""
    values = [index / 7 for index in range(1, 80)]
    for function in (math.sin, math.cos, math.tan, math.exp, math.log, math.tanh, math.atan):
        yield from map(function, values)
    yield from (value**1.7 for value in values)


def _torch_results(dtype: torch.dtype) -> Iterator[NDArray[Any]]:
    rows = torch.from_numpy(_numbers(_BATCH, _WIDTH, np.float64)).to(dtype)
    weights = rows[:_WIDTH].contiguous()
    yield (rows @ weights.T).numpy()
    yield (rows.T @ rows).numpy()
    values = rows * 6
    functions = (values.tanh(), values.exp(), values.log_softmax(-1), values.abs().log1p(), functional.gelu(values))
    totals = (rows.sum(), rows.sum(0), rows.square().mean(1), rows.std(0))
    yield from (result.numpy() for result in (*functions, *totals))


def _convolution() -> NDArray[Any]:
    images, filters = (
        torch.from_numpy(_numbers(count, 4 * size * size, np.float32)) for count, size in ((2, 20), (8, 8))
    )
    return functional.conv2d(images.view(2, 4, 20, 20), filters.view(8, 4, 8, 8), stride=4).numpy()
