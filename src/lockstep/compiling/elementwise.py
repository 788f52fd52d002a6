"""Element-wise operations of PyTorch and their derivatives, in terms of the interpreter's operations."""

import math
from functools import partial
from typing import Any

import torch

from lockstep.compiling.lowering import Expression, elementwise
from lockstep.compiling.values import Unsupported

__all__: list[str] = []

_SAME = {
    **{name: name for name in ("exp", "expm1", "log", "log1p", "sqrt", "tanh", "sigmoid", "erf", "lgamma", "digamma")},
    **{name: name for name in ("minimum", "maximum", "where")},
    **{
        "neg": "negate",
        "abs": "absolute",
        "clone": "assign",
        "mul": "multiply",
        "div": "divide",
        "eq": "equal",
        "ne": "not_equal",
    },
    **{
        "lt": "less",
        "le": "less_equal",
        "logical_and": "and",
        "logical_or": "or",
    },
}
"""Operations of PyTorch that are operations of the interpreter. With an underscore at the end they work in place."""


def _apply(operation: str, e: Expression, *operands: Any, memory_format: object = None) -> Any:
    return e(operation, *operands)


for _name, _operation in _SAME.items():
    elementwise(_name, f"{_name}_")(partial(_apply, _operation))


@elementwise("add", "add_")
def _add(e: Expression, x: Any, y: Any, alpha: float = 1) -> Any:
    if e.dtype == torch.bool:
        raise Unsupported("sums of boolean tensors")
    return e("add", x, y) if alpha == 1 else e("multiply_add", y, alpha, x)


@elementwise("sub", "sub_")
def _sub(e: Expression, x: Any, y: Any, alpha: float = 1) -> Any:
    return e("subtract", x, y) if alpha == 1 else e("multiply_add", y, -alpha, x)


@elementwise("rsub")
def _rsub(e: Expression, x: Any, y: Any, alpha: float = 1) -> Any:
    return _sub(e, y, x, alpha)


@elementwise("gt")
def _gt(e: Expression, x: Any, y: Any) -> Any:
    return e("less", y, x)


@elementwise("ge")
def _ge(e: Expression, x: Any, y: Any) -> Any:
    return e("less_equal", y, x)


@elementwise("logical_not")
def _logical_not(e: Expression, x: Any) -> Any:
    return e("equal", x, 0)


@elementwise("bitwise_not")
def _bitwise_not(e: Expression, x: Any) -> Any:
    return _logical_not(e, *_truth_values(x))


@elementwise("bitwise_and", "bitwise_and_")
def _bitwise_and(e: Expression, x: Any, y: Any) -> Any:
    return e("and", *_truth_values(x, y))


@elementwise("bitwise_or", "bitwise_or_")
def _bitwise_or(e: Expression, x: Any, y: Any) -> Any:
    return e("or", *_truth_values(x, y))


def _truth_values(*operands: Any) -> tuple[Any, ...]:
    if any(operand.dtype != torch.bool for operand in operands):
        raise Unsupported("bitwise operations on integers")
    return operands


@elementwise("masked_fill", "masked_fill_")
def _masked_fill(e: Expression, x: Any, mask: Any, value: Any) -> Any:
    return e("where", mask, value, x)


@elementwise("pow")
def _pow(e: Expression, x: Any, exponent: Any) -> Any:
    if exponent == 1:
        return x
    if exponent == 2:
        return e("multiply", x, x)
    if exponent == 3:
        return e("multiply", e("multiply", x, x), x)
    raise Unsupported(f"powers other than squares and cubes, such as {exponent}")


@elementwise("lerp")
def _lerp(e: Expression, x: Any, y: Any, weight: Any) -> Any:
    return e("multiply_add", weight, e("subtract", y, x), x)


@elementwise("log_beta")
def _log_beta(e: Expression, x: Any, y: Any) -> Any:
    return e("log_beta", x, y)


@elementwise("polygamma")
def _polygamma(e: Expression, order: int, x: Any) -> Any:
    if order != 1:
        raise Unsupported(f"polygamma of order {order}")
    return e("trigamma", x)


@elementwise("relu", "relu_")
def _relu(e: Expression, x: Any) -> Any:
    return e("maximum", x, 0)


@elementwise("threshold_backward")
def _threshold_backward(e: Expression, gradient: Any, x: Any, threshold: Any) -> Any:
    return e("where", e("less_equal", x, threshold), 0, gradient)


@elementwise("clamp", "clamp_min")
def _clamp(e: Expression, x: Any, min: Any = None, max: Any = None) -> Any:
    bounded = x if min is None else e("maximum", x, min)
    return bounded if max is None else e("minimum", bounded, max)


@elementwise("clamp_max")
def _clamp_max(e: Expression, x: Any, max: Any) -> Any:
    return e("minimum", x, max)


@elementwise("tanh_backward")
def _tanh_backward(e: Expression, gradient: Any, y: Any) -> Any:
    return e("multiply", gradient, e("subtract", 1, e("multiply", y, y)))


@elementwise("sigmoid_backward")
def _sigmoid_backward(e: Expression, gradient: Any, y: Any) -> Any:
    return e("multiply", e("multiply", gradient, e("subtract", 1, y)), y)


@elementwise("silu")
def _silu(e: Expression, x: Any) -> Any:
    return e("multiply", x, e("sigmoid", x))


@elementwise("silu_backward")
def _silu_backward(e: Expression, gradient: Any, x: Any) -> Any:
    y = e("sigmoid", x)
    return e("multiply", e("multiply", gradient, y), e("multiply_add", x, e("subtract", 1, y), 1))


@elementwise("elu")
def _elu(e: Expression, x: Any, *scales: Any) -> Any:
    _check_elu(scales)
    return e("where", e("less_equal", x, 0), e("expm1", x), x)


@elementwise("elu_backward")
def _elu_backward(e: Expression, gradient: Any, *others: Any) -> Any:
    *scales, is_result, x = others
    _check_elu(scales)
    slope = e("add", x, 1) if is_result else e("exp", x)
    return e("where", e("less_equal", x, 0), e("multiply", gradient, slope), gradient)


def _check_elu(scales: Any) -> None:
    if any(scale != 1 for scale in scales):
        raise Unsupported(f"elu with the factors {scales}")


@elementwise("gelu")
def _gelu(e: Expression, x: Any, approximate: str = "none") -> Any:
    half = e("multiply", x, 0.5)
    if approximate == "none":
        return e("multiply", half, e("add", 1, e("erf", e("multiply", x, math.sqrt(0.5)))))
    return e("multiply", half, e("add", 1, _gelu_tanh(e, x)))


@elementwise("gelu_backward")
def _gelu_backward(e: Expression, gradient: Any, x: Any, approximate: str = "none") -> Any:
    square = e("multiply", x, x)
    if approximate == "none":
        distribution = e("multiply", 0.5, e("add", 1, e("erf", e("multiply", x, math.sqrt(0.5)))))
        density = e("multiply", e("exp", e("multiply", square, -0.5)), 1 / math.sqrt(2 * math.pi))
        return e("multiply", gradient, e("multiply_add", x, density, distribution))
    y = _gelu_tanh(e, x)
    inner = e("multiply", e("multiply_add", square, 3 * _GELU_CUBIC, 1), math.sqrt(2 / math.pi))
    slope = e("multiply", e("multiply", e("multiply", x, 0.5), e("subtract", 1, e("multiply", y, y))), inner)
    return e("multiply", gradient, e("multiply_add", e("add", 1, y), 0.5, slope))


_GELU_CUBIC = 0.044715
"""Coefficient of x³ in the approximation of gelu (Hendrycks & Gimpel 2016, arXiv:1606.08415)."""


def _gelu_tanh(e: Expression, x: Any) -> Any:
    cube = e("multiply", e("multiply", x, x), x)
    return e("tanh", e("multiply", e("multiply_add", cube, _GELU_CUBIC, x), math.sqrt(2 / math.pi)))


@elementwise("softplus")
def _softplus(e: Expression, x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    scaled = e("multiply", x, beta)
    return e("where", e("less", threshold, scaled), x, e("divide", e("log1p", e("exp", scaled)), beta))


@elementwise("softplus_backward")
def _softplus_backward(e: Expression, gradient: Any, x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    scaled = e("multiply", x, beta)
    return e("where", e("less", threshold, scaled), gradient, e("multiply", gradient, e("sigmoid", scaled)))
