"""Replacements of PyTorch operations in compiled formulas, several times faster for small networks in float32."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.compiling.interfaces import private_interface
from lockstep.compiling.products import product, register_products
from lockstep.processes.portable import is_portable

__all__ = ["REWRITES", "register_lowerings"]

_TANH_LIMIT = 9.0
_NUMERATOR = (9.999999796e-01, 1.338103772e-01, 3.495601896e-03, 2.060928902e-05, 1.335491344e-08)
_DENOMINATOR = (1.0, 4.671435337e-01, 2.587703601e-02, 3.285656452e-04, 7.776668600e-07)
"""Coefficients of the polynomials P and Q of `_tanh`, from the constant term on."""
_NARROW = 4
"""Maximum number of columns (or rows) for which explicit sums are faster than BLAS, which is optimized for square matrices."""
_TALL, _LARGE = 128, 2**21
"""Numbers of rows and of multiplications from which oneDNN is faster than MKL on AMD processors: 1.5 times for 512 × 64 times 64 × 64, more than
2 times for 512 × 128 times 128 × 128.
"""
_UNFUSED: tuple[str, list[float], str] = ("none", [], "")
"""Arguments of a oneDNN product with which no other operation is fused."""
_OPERATIONS = torch.library.Library("lockstep", "FRAGMENT")
_OPERATIONS.define("linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor")


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


def _product(left: Tensor, right: Tensor) -> Any:
    """Compute `[M, K] @ [K, N]`. For small N or M use N or M sums, which inductor fuses with the operations before them."""
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
    """Compute `left @ right + bias`, portably if bits must be portable, else with oneDNN where it is faster.

    NotImplemented leaves the operation as it is.
    """
    if is_portable():
        return product(left, right, bias)
    faster = left.shape[0] >= _TALL and left.numel() * right.shape[1] >= _LARGE and _is_amd()
    return torch.ops.lockstep.linear(left, right.t(), bias) if faster else NotImplemented


@cache
def _is_amd() -> bool:
    """Return True on AMD processors if oneDNN and its private operation are available. MKL uses its fastest code on Intel processors only."""
    information = Path("/proc/cpuinfo")
    available = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return available and information.exists() and "AuthenticAMD" in information.read_text()


@torch.library.impl(_OPERATIONS, "linear", "CPU")
def _linear_cpu(left: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute `left @ weightᵀ + bias` with oneDNN. An operation of its own: inductor would fuse PyTorch's with others."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, weight, bias, *_UNFUSED)
    return product


@torch.library.impl(_OPERATIONS, "linear", "Meta")
def _linear_meta(left: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return left.new_empty(left.shape[0], weight.shape[0])


def register_lowerings() -> None:
    """Register with inductor how it compiles products with oneDNN, and portable ones."""
    register_products()
    create_box = private_interface("torch._inductor.ir", "TensorBox.create")
    create_linear = private_interface("torch._inductor.mkldnn_ir", "LinearUnary.create")
    lowerings = private_interface("torch._inductor.lowering", "lowerings")

    def lower(left: Any, weight: Any, bias: Any) -> Any:
        return create_box(create_linear(left, weight, bias, *_UNFUSED))

    lowerings[torch.ops.lockstep.linear.default] = lower


REWRITES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.tanh.default: _tanh,
    torch.ops.aten.mm.default: _product,
    torch.ops.aten.addmm.default: _product_and_bias,
}
"""The replacements, in the form of a decomposition table of `make_fx`."""
