"""Replacements of PyTorch operations in compiled formulas, several times faster for small networks in float32."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lockstep.compiling.products import product

__all__ = ["rewrites"]

Linear = Callable[[Tensor, Tensor, Tensor | None], Any]
"""Function that computes `left @ right + bias`, or returns NotImplemented to leave the operation as it is."""

_TANH_LIMIT = 9.0
_NUMERATOR = (9.999999796e-01, 1.338103772e-01, 3.495601896e-03, 2.060928902e-05, 1.335491344e-08)
_DENOMINATOR = (1.0, 4.671435337e-01, 2.587703601e-02, 3.285656452e-04, 7.776668600e-07)
"""Coefficients of the polynomials P and Q of `_tanh`, from the constant term on."""
_NARROW = 4
"""Maximum number of columns (or rows) for which explicit sums are faster than BLAS, which is optimized for square matrices."""


def _tanh(x: Tensor) -> Tensor:
    """Approximate tanh by x P(x²) / Q(x²), which is fitted to 2e-8 up to |x| = 9, where tanh is 1 up to rounding. Error in float32: 4e-7.

    The compiler vectorizes this short form; it costs a tenth of the library's tanh.
    """
    x = x.clamp(-_TANH_LIMIT, _TANH_LIMIT)
    square = x * x
    numerator, denominator = _polynomial(_NUMERATOR, square), _polynomial(_DENOMINATOR, square)
    return x * numerator / denominator


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    total = torch.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


def _product(left: Tensor, right: Tensor, linear: Linear) -> Any:
    """Compute `[M, K] @ [K, N]`. For small N or M use N or M sums, which inductor fuses with the operations before them."""
    if right.shape[1] <= _NARROW:
        return torch.stack([(left * column).sum(1) for column in right.unbind(1)]).t()
    if left.shape[0] <= _NARROW:
        return torch.stack([(row.unsqueeze(1) * right).sum(0) for row in left.unbind(0)], 0)
    return linear(left, right, None)


def _product_and_bias(linear: Linear, bias: Tensor, left: Tensor, right: Tensor, **scales: Any) -> Any:
    if scales:
        return NotImplemented
    if min(left.shape[0], right.shape[1]) > _NARROW:
        return linear(left, right, bias)
    return bias + _product(left, right, linear)


def rewrites(own_products: bool) -> dict[Any, Callable[..., Any]]:
    """Return the replacements, in the form of a decomposition table of `make_fx`.

    With `own_products`, `product.cpp` computes products; otherwise, PyTorch does.
    """

    def linear(left: Tensor, right: Tensor, bias: Tensor | None) -> Any:
        return product(left, right, bias) if own_products else NotImplemented

    return {
        torch.ops.aten.tanh.default: _tanh,
        torch.ops.aten.mm.default: partial(_product, linear=linear),
        torch.ops.aten.addmm.default: partial(_product_and_bias, linear),
    }
