"""Tests of the translation of formulas to programs, each against PyTorch."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lockstep.compiling.kernels import InterpretedKernel
from lockstep.compiling.program import Builder
from lockstep.compiling.trace import trace
from lockstep.compiling.values import Unsupported, Value, View

HELD = torch.arange(12.0).view(3, 4)


def slice_gradient(x: Tensor) -> Tensor:
    """Compute a gradient through a slice and a selected row."""
    y = x.detach().requires_grad_()
    loss = (y[1:, ::2].square().sum() + y[0].exp().sum()) * 2
    return torch.autograd.grad(loss, y)[0]


def in_place(x: Tensor) -> Tensor:
    """Change one of two copies in part, between two reads of it."""
    y, z = x.clone(), x.clone()
    before = y.exp()
    y[:, 1].copy_(x[:, 0])
    return before + y.exp() + z.exp() * x


def delayed(x: Tensor) -> Tensor:
    """Separate operations from the ones that read their results by products, so that they may be computed later."""
    sine, cut = x.exp(), x.clone()
    cut[:, 1].copy_(x[:, 0])
    once, twice, flat = 1 - sine * sine, sine + 2, sine - 3
    chain = (cut * 2).abs() + 1
    turned, total = sine * 5, (sine * 7).sum(1, keepdim=True)
    scattered = (x * 0).scatter_add(1, (x[:, :2] * 0).long(), x[:, 1:3]) + 4
    y = x @ HELD.to(x.dtype).t()  # [3, 3]
    z = (y @ x).tanh()
    result = z * once + z * twice + (z @ x.t()) @ twice + z.view(-1).mul(flat.view(-1)).view(3, 4)
    return result + z * chain + (z.t() * turned.t()).t() + z * total + z * scattered + once.amax()


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "delayed": delayed,
    "views": lambda x: (x.t()[1:3] * x[:2, :3].sum()).flatten(1).unsqueeze(0),
    "broadcast": lambda x: x[:, :1] * x[0] - x.mean(1, keepdim=True),
    "transposed result": lambda x: (x.t() + 1).exp() @ x,
    "transposed in a group": lambda x: x[:, :3].exp().t() - x[:, :3].exp(),
    "in place": in_place,
    "gradient of a slice": slice_gradient,
    "captured": lambda x: x @ HELD.t() + HELD.sum(),
    "captured integers": lambda x: x * torch.arange(4).to(x.dtype) * (HELD[0] > 1),
    "cat": lambda x: torch.cat([x[:1], x, x[:0]], 0),
    "stack": lambda x: torch.stack([x, x * 2], 1).sum(2),
    "gather": lambda x: x.gather(1, (x[:, :2] * 0).long() + torch.tensor([1, 3])),
    "argmax": lambda x: torch.cat([x.argmax(1), x.t()[1:].argmax(-1)]).to(x.dtype),
    "argmax of equal numbers": lambda x: (x > 0).to(x.dtype).argmax(1, keepdim=True) * x,
    "powers": lambda x: x**3 - x**2 + x**1,
    "log_softmax": lambda x: functional.log_softmax(x * 30, -1),
    "where": lambda x: torch.where((x > 0) & ~(x > 1) | (x < -1), x, -x.abs()).clamp(-0.7, 0.5),
    "reductions": lambda x: x.sum(0) + x.sum() + x.amax(0) + x.square().mean(),
    "batches of products": lambda x: torch.baddbmm(
        x.unsqueeze(1), x.view(3, 2, 2), torch.cat([x.view(3, 2, 2)] * 2, 2)
    ),
    "sum of a matrix and a product": lambda x: torch.addmm(x[:, :3], x[:, :2], x[:2, 1:]),
    "sum of a tall matrix and a product": lambda x: torch.addmm(
        torch.cat([x] * 9)[:, 1:3], torch.cat([x] * 9), x.t()[:, :2]
    ),
    "nothing": lambda x: torch.cat([x[:0], x[:0]]) * 2,
    "product of nothing": lambda x: functional.linear(x[:0], HELD, HELD.sum(1)),
    "unused": lambda x: [x.exp().cumsum(0), x * 3][1],
    "number": lambda x: torch.full((2, 2), 7.0).to(x.dtype) * x[0, 0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_programs_compute_the_same(name: str, dtype: torch.dtype) -> None:
    global HELD
    HELD = HELD.to(dtype)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    formula = FORMULAS[name]
    expected = formula(x)
    (result,) = InterpretedKernel(lambda *tensors: (formula(*tensors).contiguous(),), (torch.zeros_like(x),))(x)
    assert result.dtype == dtype
    torch.testing.assert_close(result, expected, rtol=1e-6 if dtype == torch.float32 else 1e-14, atol=1e-7)


def logistic(count: int) -> Callable[[Tensor], Tensor]:
    """Return a formula of several element-wise steps, with a matrix product, that is chained `count` times."""

    def formula(x: Tensor) -> Tensor:
        for _ in range(count):
            x = torch.sigmoid(x - x.mean()) * (1 - x / 9) + x[:1]
        return x @ x.t()

    return formula


@given(rows=st.integers(0, 40), columns=st.integers(1, 600), count=st.integers(1, 12))
def test_any_shape(rows: int, columns: int, count: int) -> None:
    x = torch.linspace(-2, 2, rows * columns).view(rows, columns)
    if rows == 0:
        x = torch.zeros(0, columns)
    formula = logistic(count)
    (result,) = InterpretedKernel(lambda *tensors: (formula(*tensors),), (x,))(x)
    torch.testing.assert_close(result, formula(x), rtol=1e-4, atol=1e-3, equal_nan=True)


def test_values_of_one_group_need_no_memory() -> None:
    def chain(x: Tensor) -> tuple[Tensor]:
        for _ in range(20):
            x = (x * 2).tanh()
        return (x,)

    assert trace(chain, [torch.zeros(1000)]).program.memory == 0


def test_memory_is_used_again() -> None:
    def products(x: Tensor) -> tuple[Tensor]:
        for _ in range(20):
            x = x @ x
        return (x,)

    assert trace(products, [torch.zeros(16, 16)]).program.memory == 2 * 256


@pytest.mark.parametrize("activation", [torch.tanh, torch.relu, torch.sigmoid])
def test_derivatives_are_computed_in_the_backward_pass(activation: Callable[[Tensor], Tensor]) -> None:
    layers, size = 8, 16

    def gradient(weights: Tensor) -> tuple[Tensor]:
        weights = weights.detach().requires_grad_()
        rows = torch.ones(size, size)
        for layer in weights:
            rows = activation(rows @ layer)
        return (torch.autograd.grad(rows.sum(), weights)[0],)

    with torch.enable_grad():
        program = trace(gradient, [torch.randn(layers, size, size)]).program
    # the outputs of all layers; their places are used again for the gradients
    assert program.memory <= (layers + 3) * size**2


def test_a_product_that_is_read_once_is_part_of_a_fused_operation() -> None:
    x = torch.tensor([1 + 2.0**-12])
    (fused,) = InterpretedKernel(lambda x: (x * x - 1,), (x,))(x)
    assert fused.item() == 2.0**-11 + 2.0**-24  # x * x rounded first would lose the last bit
    (both,) = InterpretedKernel(lambda x: (torch.cat([x * x - 1, x * x]),), (x,))(x)
    assert both[0].item() == 2.0**-11


def test_nan_is_the_greatest_number_of_argmax() -> None:
    x = torch.tensor([[1, 2, math.nan, 5, math.nan], [math.nan, math.inf, 1, 1, 1], [-math.inf] * 5])
    (found,) = InterpretedKernel(lambda x: (x.argmax(1).to(x.dtype),), (x,))(x)
    assert found.tolist() == x.argmax(1).tolist() == [2, 0, 0]


def test_an_index_that_does_not_exist_gives_nan() -> None:
    x = torch.ones(2, 3)
    kernel = InterpretedKernel(lambda x, index: (x.gather(1, index.long()),), (x, torch.zeros(2, 1)))
    for index in (3.0, -1.0, math.nan):
        assert kernel(x, torch.tensor([[0.0], [index]]))[0].isnan().flatten().tolist() == [False, True]


@pytest.mark.parametrize(
    ("formula", "what"),
    [
        (lambda x: (x**4,), "powers other than squares and cubes, such as 4"),
        (lambda x: (x.argmax() * x,), "argmax without a dimension, or of nothing"),
        (lambda x: (functional.log_softmax(x, 0),), "softmax over a dimension that is not the last one"),
        (lambda x: (torch.addmm(x, x, x, beta=2),), "matrix products with alpha or beta other than 1"),
        (lambda x: (torch.addmm(x.t(), x, x),), "products to which rows are added that are not contiguous"),
        (lambda x: (x.gather(0, x.long()),), "indexing along a dimension that is not the last of a vector or matrix"),
        (lambda x: (x * torch.arange(3.0).add_(1),), "changes in place of tensors that the formula does not compute"),
        (lambda x: (x * x.sum().item(),), "the operation _local_scalar_dense.default"),
        (lambda x: (torch.add(x, 1, out=torch.zeros_like(x)),), "the operation add.out"),
        (lambda x: (torch._foreach_add_([y := x.clone()], 1.0), (y,))[1], "the operation '_foreach_add_' of PyTorch"),
        (lambda x: (((x.long() & 1) * x),), "bitwise operations on integers"),
        (lambda x: (((x > 0) + (x < 1)) * x,), "sums of boolean tensors"),
        (lambda x: (x.div(x, rounding_mode="floor"),), "these arguments of the operation 'div'"),
        (
            lambda x: (
                torch.ones(2, 2, 2, 2, 2, 2, 2).permute(6, 4, 2, 0, 5, 3, 1).exp().permute(1, 3, 5, 0, 2, 4, 6)
                + x[0, 0],
            ),
            "arrays of 7 dimensions",
        ),
    ],
)
def test_what_is_not_supported_is_named(formula: Callable[[Tensor], tuple[Tensor]], what: str) -> None:
    with pytest.raises(Unsupported, match=f"does not support {what}; use --runtime.compile off"):
        trace(formula, [torch.zeros(3, 3)])


@pytest.mark.parametrize("offset", [-1, 3])
def test_a_view_beyond_its_numbers_is_refused(offset: int) -> None:
    builder = Builder()
    value = Value(6, array=2)
    builder.copy(View(value, 2, (2, 2), (2, 1)), View.contiguous(Value(4), (2, 2)))
    beyond = View(value, offset, (2, 2), (2, 1))
    with pytest.raises(ValueError, match=rf"a view of \(2, 2\) with strides \(2, 1\) from {offset} exceeds 6 numbers"):
        builder.reduce(beyond, [0])
    with pytest.raises(ValueError, match=r"exceeds 6 numbers"):
        builder.apply("tanh", (2, 2), [beyond])
    assert View(value, offset, (0, 2), (2, 1)).fits
    assert not View(value, 2, (2, 2), (-3, 1)).fits
    assert View(value, 3, (2, 2), (-3, 1)).fits
