"""Operations that are compiled in another form, because it is several times faster for small networks in float32."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["REWRITES", "lower_products"]

_LIMIT = 9.0
_ABOVE = (9.999999796e-01, 1.338103772e-01, 3.495601896e-03, 2.060928902e-05, 1.335491344e-08)
_BELOW = (1.0, 4.671435337e-01, 2.587703601e-02, 3.285656452e-04, 7.776668600e-07)
_NARROW = 4
"""Columns up to which a product by hand beats that of BLAS, which is made for square ones."""
_TALL, _LARGE = 128, 2**21
"""Rows, and multiplications, from which oneDNN's product beats MKL's on AMD's processors: by half for 512 × 64 times 64 × 64, by more than 2 for
512 × 128 times 128 × 128.
"""
_ALONE: tuple[str, list[float], str] = ("none", [], "")
"""No other operation is fused with it."""
_OPERATIONS = torch.library.Library("lockstep", "DEF")
_OPERATIONS.define("linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor")


def _tanh(x: Tensor) -> Tensor:
    """A rational approximation, x P(x²) / Q(x²), fitted to 2e-8 up to |x| = 9, where tanh is 1 to within rounding: 4e-7 in float32.

    As short as this it is vectorized and costs a tenth of the library's.
    """
    x = x.clamp(-_LIMIT, _LIMIT)
    square = x * x
    above, below = _polynomial(_ABOVE, square), _polynomial(_BELOW, square)
    return x * above / below


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    total = torch.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


def _product(left: Tensor, right: Tensor) -> Any:
    """`[M, K] @ [K, N]` with few rows or columns in the result, as N or M sums that are fused with what comes before."""
    if right.shape[1] <= _NARROW:
        return torch.stack([(left * column).sum(1) for column in right.unbind(1)]).t()
    if left.shape[0] <= _NARROW:
        return torch.stack([(row.unsqueeze(1) * right).sum(0) for row in left.unbind(0)], 0)
    return _linear(left, right, None)


def _product_and_bias(bias: Tensor, left: Tensor, right: Tensor, **scales: Any) -> Any:
    if scales:
        return NotImplemented
    if min(left.shape[0], right.shape[1]) > _NARROW:
        return _linear(left, right, bias)
    return bias + _product(left, right)


def _linear(left: Tensor, right: Tensor, bias: Tensor | None) -> Any:
    """The product by oneDNN where it is the faster one."""
    large = left.shape[0] >= _TALL and left.numel() * right.shape[1] >= _LARGE
    return torch.ops.lockstep.linear(left, right.t(), bias) if large and _by_amd() else NotImplemented


@cache
def _by_amd() -> bool:
    """Whether this processor is AMD's: MKL keeps its best code for Intel's."""
    information = Path("/proc/cpuinfo")
    return torch.backends.mkldnn.is_available() and information.exists() and "AuthenticAMD" in information.read_text()


@torch.library.impl(_OPERATIONS, "linear", "CPU")
def _computed(left: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`left @ weightᵀ + bias` by oneDNN. An operation of our own, for inductor fuses PyTorch's with others that want frozen weights."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(left, weight, bias, *_ALONE)
    return found


@torch.library.impl(_OPERATIONS, "linear", "Meta")
def _shaped(left: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return left.new_empty(left.shape[0], weight.shape[0])


def lower_products() -> None:
    """Tells inductor how products by oneDNN are compiled."""
    from torch._inductor.ir import TensorBox
    from torch._inductor.lowering import lowerings
    from torch._inductor.mkldnn_ir import LinearUnary

    def lowered(left: Any, weight: Any, bias: Any) -> Any:
        return TensorBox.create(LinearUnary.create(left, weight, bias, *_ALONE))

    lowerings[torch.ops.lockstep.linear.default] = lowered


REWRITES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.tanh.default: _tanh,
    torch.ops.aten.mm.default: _product,
    torch.ops.aten.addmm.default: _product_and_bias,
}
