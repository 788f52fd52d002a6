"""Tests of the interpreter's functions against PyTorch's in double precision."""

import math

import pytest
import torch
from torch import Tensor

from lockstep.compiling.kernels import InterpretedKernel
from lockstep.distributions.log_beta import log_beta

WIDE = torch.cat([torch.linspace(-110, 110, 20_001), torch.logspace(-40, 2, 2001), -torch.logspace(-40, 2, 2001)])
POSITIVE = torch.cat([torch.logspace(-44, 38, 20_001), torch.linspace(0.5, 2, 20_001)])
SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0])
FUNCTIONS = {
    "exp": (torch.exp, WIDE, 3e-7),
    "expm1": (torch.expm1, WIDE, 4e-7),
    "log": (torch.log, POSITIVE, 3e-7),
    "log1p": (torch.log1p, torch.cat([POSITIVE, torch.linspace(-0.999, 1, 20_001)]), 4e-7),
    "tanh": (torch.tanh, WIDE, 4e-7),
    "sigmoid": (torch.sigmoid, WIDE.clamp(min=-85), 4e-7),
    "erf": (torch.erf, WIDE.clamp(-6, 6), 2e-7),
    "sqrt": (torch.sqrt, POSITIVE, 1e-7),
    "lgamma": (torch.lgamma, torch.logspace(-3, 4, 20_001), 3e-7),
    "digamma": (torch.digamma, torch.logspace(-3, 4, 20_001), 3e-7),
    "trigamma": (lambda x: torch.polygamma(1, x), torch.logspace(-3, 4, 20_001), 3e-7),
}
DOUBLE = {"exp": 1e-15, "expm1": 3e-15, "log": 1e-15, "log1p": 3e-15, "tanh": 3e-15, "sigmoid": 1e-15, "erf": 1e-15}
"""Bounds of the errors in double precision, for those that PyTorch computes as precisely."""


def computed(name: str, x: Tensor) -> Tensor:
    function = FUNCTIONS[name][0]
    return InterpretedKernel(lambda x: (function(x),), (x,))(x)[0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_precise(name: str) -> None:
    function, x, bound = FUNCTIONS[name]
    exact = function(x.double())
    single = exact.float()  # infinite and subnormal results as in single precision
    error = (computed(name, x).double() - exact).abs()
    scale = exact.abs().clamp(min=1 if name in ("lgamma", "digamma", "log", "erf") else 2.0**-126 / 1e-7)
    assert (error[single.isfinite()] <= (bound * scale)[single.isfinite()]).all()
    assert torch.equal(computed(name, x)[single.isinf()], single[single.isinf()])


@pytest.mark.parametrize("name", DOUBLE)
def test_functions_are_precise_in_double_precision(name: str) -> None:
    function, x, _ = FUNCTIONS[name]
    x = x.double()
    exact = function(x)
    error = (computed(name, x) - exact).abs()
    scale = exact.abs().clamp(min=1 if name in ("log", "erf") else 1e-290)
    assert (error[exact.isfinite()] <= (DOUBLE[name] * scale)[exact.isfinite()]).all()


@pytest.mark.parametrize("name", ["exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "sqrt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_special_values(name: str, dtype: torch.dtype) -> None:
    x = SPECIAL.to(dtype)
    torch.testing.assert_close(computed(name, x), FUNCTIONS[name][0](x), equal_nan=True, rtol=0, atol=1e-15)


def test_log_beta_does_not_cancel() -> None:
    x = torch.logspace(-2, 4, 501).repeat(3)
    y = torch.cat([x[:501], x[:501].flip(0), torch.ones(501)])
    (result,) = InterpretedKernel(lambda x, y: (log_beta(x, y),), (x, y))(x, y)
    exact = x.double().lgamma() + y.double().lgamma() - (x.double() + y.double()).lgamma()
    assert ((result - exact).abs() <= 2e-7 * exact.abs().clamp(min=1)).all()


@pytest.mark.parametrize("operation", [torch.minimum, torch.maximum], ids=["minimum", "maximum"])
def test_minimum_and_maximum_propagate_nan(operation) -> None:
    x, y = torch.tensor([math.nan, 1.0, 2.0, 3.0]), torch.tensor([1.0, math.nan, 3.0, 2.0])
    (result,) = InterpretedKernel(lambda x, y: (operation(x, y),), (x, y))(x, y)
    torch.testing.assert_close(result, operation(x, y), equal_nan=True, rtol=0, atol=0)
