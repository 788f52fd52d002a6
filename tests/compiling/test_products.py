import ctypes
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.compiling.build import CompilerFailed
from lockstep.compiling.cache import cache_folder
from lockstep.compiling.products import load_products
from lockstep.processes.portable import portable_problem

pytestmark = pytest.mark.skipif(portable_problem() is not None, reason="this processor can't give portable bits")

SHAPES = [
    (1, 1, 1), (1, 16, 300), (6, 16, 8), (7, 17, 9), (5, 3, 257), (64, 64, 64), (13, 100, 31), (2, 2, 513), (4, 5, 0), (0, 4, 4), (4, 0, 4)
]  # fmt: skip
"""Rows, columns and inner dimension: whole tiles, parts of tiles, several blocks, and nothing."""


@pytest.fixture(scope="module")
def compute() -> Callable[..., Tensor]:
    cache_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    function = load_products(cache_folder(), lambda: None).lockstep_product
    size, pointer = ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [size, size, size, pointer, size, size, pointer, size, size, pointer, pointer, size]

    def product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
        (rows, inner), columns = left.shape, right.shape[1]
        result = torch.full((rows, columns), math.nan)
        matrices = (left.data_ptr(), *left.stride(), right.data_ptr(), *right.stride())
        function(rows, columns, inner, *matrices, None if bias is None else bias.data_ptr(), result.data_ptr(), columns)
        return result

    return product


def matrices(shape: tuple[int, int, int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows, columns, inner = shape
    sizes = ((rows, inner), (inner, columns), (columns,))
    left, right, bias = (torch.randn(size, generator=generator) for size in sizes)
    return left, right, bias


def fused(factor: float, other: float, total: float) -> float:
    """Round `factor * other + total` once. NumPy converts a fraction by way of float64, so the odd case that rounds twice is ruled out."""
    exact = Fraction(factor) * Fraction(other) + Fraction(total)
    near = np.float32(float(exact))
    candidates = (near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf)))
    return float(
        min(candidates, key=lambda value: (abs(Fraction(float(value)) - exact), int(value.view(np.int32)) & 1))
    )


@pytest.mark.parametrize("shape", [(3, 5, 20), (7, 18, 3), (2, 1, 270)])
def test_elements_are_chains_of_fused_operations_from_the_bias(compute, shape: tuple[int, int, int]) -> None:
    left, right, bias = matrices(shape)
    result = compute(left, right, bias)
    for row in range(shape[0]):
        for column in range(shape[1]):
            total = bias[column].item()
            for k in range(shape[2]):
                total = fused(left[row, k].item(), right[k, column].item(), total)
            assert result[row, column].item() == total


@pytest.mark.parametrize("shape", SHAPES)
def test_bits_do_not_depend_on_layouts_or_neighbors(compute, shape: tuple[int, int, int]) -> None:
    left, right, bias = matrices(shape)
    result = compute(left, right, bias)
    exact = left.double() @ right.double() + bias
    assert torch.allclose(result.double(), exact, atol=2e-4)
    assert torch.equal(compute(left, right), compute(left, right, torch.zeros_like(bias)))
    for other_left in (left, left.t().contiguous().t()):
        for other_right in (right, right.t().contiguous().t()):
            assert torch.equal(compute(other_left, other_right, bias), result)
    for row in range(shape[0]):
        assert torch.equal(compute(left[row : row + 1], right, bias), result[row : row + 1])
    for column in range(shape[1]):
        part = slice(column, column + 1)
        assert torch.equal(compute(left, right[:, part], bias[part]), result[:, part])


def test_views_with_other_strides(compute) -> None:
    whole, other, bias = matrices((40, 300, 90))
    left, right = whole[3:33:2, 5:45], other[10:50, 7:290:3]
    assert torch.equal(compute(left, right), compute(left.contiguous(), right.contiguous()))
    wide = other[:40, :200]  # rows that are too far from each other to be read in place
    assert torch.equal(compute(left, wide, bias), compute(left, wide.contiguous(), bias))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_propagate(compute, value: float) -> None:
    left, right, bias = matrices((9, 20, 30))
    left[4, 7] = value
    result = compute(left, right, bias)
    finite = result.isfinite()
    assert not finite[4].any()
    assert finite[torch.arange(9) != 4].all()


def test_failure_of_the_compiler_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(CompilerFailed, match=r"the compilation failed, see .*failure\.log") as caught:
        load_products(tmp_path, lambda: None)
    assert len(str(caught.value).splitlines()) == 1
    assert [path.name for path in tmp_path.glob("*.so")] == []
