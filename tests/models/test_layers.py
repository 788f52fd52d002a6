"""Tests of the initialization of layers."""

import hashlib

import pytest
import torch
from torch import nn

from lockstep.models.layers import orthogonal

SHAPES = [(64, 17), (17, 64), (64, 64), (1, 5), (16, 4, 8, 8), (300, 300)]
DIGEST = "6380bd9bc9f6fab4"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonal_weights_are_those_of_pytorch_up_to_rounding(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    expected, found = (torch.empty(shape, dtype=dtype) for _ in range(2))
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    nn.init.orthogonal_(expected, 1.5, generator=generators[0])
    orthogonal(found, 1.5, generators[1])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-11)
    assert torch.equal(*(generator.get_state() for generator in generators))
    matrix = found.flatten(1).double()
    product = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
    torch.testing.assert_close(product, 2.25 * torch.eye(len(product)).double(), rtol=0, atol=1e-6)


def test_orthogonal_weights_have_the_recorded_bits() -> None:
    """On every processor. They are the initial weights of runs."""
    content = hashlib.sha256()
    for shape in SHAPES:
        weights = torch.empty(shape)
        orthogonal(weights, generator=torch.Generator().manual_seed(2))
        content.update(weights.numpy().tobytes())
    assert content.hexdigest()[:16] == DIGEST


def test_without_a_generator_the_global_one_is_used() -> None:
    first, second = torch.empty(4, 3), torch.empty(4, 3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        orthogonal(first)
    orthogonal(second, generator=torch.Generator().manual_seed(5))
    assert torch.equal(first, second)


def test_on_the_device_meta_nothing_is_computed() -> None:
    weights = torch.empty(100_000, 100_000, device="meta")
    orthogonal(weights, generator=torch.Generator(device="cpu"))
    assert weights.is_meta
