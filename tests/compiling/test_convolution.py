"""Tests of convolutions and max-pooling as programs, each against PyTorch."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lockstep.compiling.kernels import InterpretedKernel
from lockstep.compiling.trace import trace
from lockstep.compiling.values import Unsupported

PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return numbers between -1 and 1."""
    return ((torch.arange(math.prod(shape)) * 7919 % 1013) / 506.5 - 1).to(dtype).view(shape)


def differentiated(formula: Callable[..., Tensor], inputs: int) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function that computes a formula, and its gradients by the first `inputs` arguments."""

    def compute(*tensors: Tensor) -> tuple[Tensor, ...]:
        wanted = [tensor.detach().requires_grad_() for tensor in tensors[:inputs]]
        with torch.enable_grad():
            result = formula(*wanted, *tensors[inputs:])
            gradients = torch.autograd.grad((result * (result + 2)).sum(), wanted)
        return tuple(tensor.detach().contiguous() for tensor in (result, *gradients))

    return compute


def assert_agree(compute: Callable[..., tuple[Tensor, ...]], arguments: tuple[Tensor, ...]) -> None:
    """Compare the results of a kernel with those of PyTorch."""
    tolerance = 1e-12 if arguments[0].dtype == torch.float64 else 1e-5
    results = InterpretedKernel(compute, arguments)(*arguments)
    for result, expected in zip(results, compute(*arguments), strict=True):
        torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance * 10)


@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9)),
    outputs=st.integers(1, 40),
    kernel=PAIRS,
    stride=PAIRS,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=PAIRS,
    layouts=st.tuples(st.booleans(), st.booleans()),
)
def test_any_convolution(
    shape: tuple[int, int, int, int],
    outputs: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    layouts: tuple[bool, bool],
) -> None:
    reach = [by * (size - 1) + 1 for by, size in zip(dilation, kernel, strict=True)]
    assume(all(r <= size + 2 * pad for r, size, pad in zip(reach, shape[2:], padding, strict=True)))
    formats = [torch.channels_last if last else torch.contiguous_format for last in layouts]

    def convolve(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        images, weight = (x.clone(memory_format=f) for x, f in zip((images, weight), formats, strict=True))
        return functional.conv2d(images, weight, bias, stride, padding, dilation)

    arguments = numbers(*shape), numbers(outputs, shape[1], *kernel), numbers(outputs)
    assert_agree(differentiated(convolve, 3), arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_more_images_than_are_computed_at_a_time(dtype: torch.dtype) -> None:
    arguments = numbers(37, 4, 40, 40, dtype=dtype), numbers(9, 4, 5, 5, dtype=dtype)
    assert_agree(differentiated(lambda x, w: functional.conv2d(x, w, stride=3), 2), arguments)


@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(3, 9), st.integers(3, 9)),
    stride=PAIRS,
    padding=st.integers(0, 1),
    dilation=st.integers(1, 1),
    last=st.booleans(),
    equal=st.booleans(),
)
def test_any_max_pooling(
    shape: tuple[int, int, int, int], stride: tuple[int, int], padding: int, dilation: int, last: bool, equal: bool
) -> None:
    def pool(images: Tensor) -> Tensor:
        images = images.clone(memory_format=torch.channels_last if last else torch.contiguous_format)
        return functional.max_pool2d(images, 3, stride, padding, dilation)

    images = numbers(*shape)
    assert_agree(differentiated(pool, 1), (images.round() if equal else images,))


def test_pooling_with_default_arguments() -> None:
    assert_agree(differentiated(lambda x: functional.max_pool2d(x, 2), 1), (numbers(2, 3, 6, 5),))


@pytest.mark.parametrize("channels", [1, 3, 4, 20])
def test_bytes_are_scaled_in_any_memory_format(channels: int) -> None:
    images = (torch.arange(5 * channels * 19 * 23) * 7919 % 256).to(torch.uint8).view(5, channels, 19, 23)

    def scale(unit: Tensor, images: Tensor) -> tuple[Tensor, ...]:
        last = images.clone(memory_format=torch.channels_last).to(unit.dtype).mul_(1 / 255)
        return last.contiguous(), images.to(unit.dtype) * unit, last.permute(0, 2, 3, 1).contiguous()

    arguments = torch.full((1,), 0.5), images
    for result, expected in zip(InterpretedKernel(scale, arguments)(*arguments), scale(*arguments), strict=True):
        assert torch.equal(result, expected)


def test_values_that_are_not_finite_spread_to_what_depends_on_them() -> None:
    images, weight = numbers(1, 1, 8, 8), numbers(1, 1, 3, 3)
    kernel = InterpretedKernel(lambda x, w: (functional.conv2d(x, w), functional.max_pool2d(x, 2)), (images, weight))
    for number in (math.nan, math.inf):
        images[0, 0, 0, 0] = number
        convolved, pooled = kernel(images, weight)
        assert convolved.isfinite().logical_not().nonzero().tolist() == [[0, 0, 0, 0]]
        assert pooled.isfinite().logical_not().nonzero().tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("formula", "what"),
    [
        (lambda x: functional.conv_transpose2d(x, x), "convolutions that are transposed, grouped or not two-dim"),
        (
            lambda x: functional.conv2d(x, x[:, :1], groups=2),
            "convolutions that are transposed, grouped or not two-dim",
        ),
        (lambda x: functional.conv1d(x[0], x[0]), "convolutions that are transposed, grouped or not two-dim"),
        (lambda x: functional.max_pool2d(x, 2, ceil_mode=True), "max-pooling in ceil mode"),
        (lambda x: functional.max_pool2d(x, 2, return_indices=True)[1] * x[:, :, :1, :1], "indices of max-pooling"),
        (lambda x: functional.conv2d(x, x[:, :, ::2]), "convolutions whose filters are not contiguous"),
    ],
)
def test_what_is_not_supported_is_named(formula: Callable[[Tensor], Tensor], what: str) -> None:
    with pytest.raises(Unsupported, match=f"does not support {what}"):
        trace(lambda x: (formula(x),), [torch.zeros(2, 2, 3, 3)])


def test_products_of_bytes_are_not_supported() -> None:
    with pytest.raises(Unsupported, match="operations on bytes that are not element-wise"):
        trace(lambda x, b: (x, b.sum(0).to(x.dtype)), [torch.zeros(2), torch.zeros(2, 2, dtype=torch.uint8)])
