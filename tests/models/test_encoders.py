"""Tests of encoders of images."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.models.encoders import ImageEncoder, _FlattenChannelsLast, convolutions
from lockstep.models.registry import encoder_factory
from lockstep.models.settings import PolicyConfig
from lockstep.randomness import stream

ATARI = (4, 84, 84)


def encoder_of(name: str, feature_size: int, *images: tuple[int, int, int], **settings: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return encoder_factory(name)(feature_size, images, PolicyConfig(**settings))


def pixels(count: int, *shapes: tuple[int, int, int]) -> tuple[Tensor, ...]:
    random = stream(1, "pixels")
    return tuple(torch.from_numpy(random.integers(0, 256, (count, *shape), dtype=np.uint8)) for shape in shapes)


@pytest.mark.parametrize(
    ("name", "images", "features", "size"),
    [
        ("nature", [ATARI], 0, 512),
        ("nature", [(1, 36, 40), (3, 64, 64)], 5, 2 * 512 + 64),
        ("impala", [ATARI], 0, 256),
        ("impala", [(3, 5, 5), (1, 1, 2)], 3, 2 * 256 + 64),
        ("grid", [(3, 7, 7)], 0, 128),
        ("grid", [(3, 7, 7), (1, 5, 16)], 4, 2 * 128 + 64),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_gradients(
    name: str, images: list[tuple[int, int, int]], features: int, size: int, dtype: torch.dtype
) -> None:
    encoder = encoder_of(name, features, *images).to(dtype)
    outputs = encoder(torch.ones(3, features, dtype=dtype), pixels(3, *images))
    assert encoder.output_size == size
    assert outputs.shape == (3, size)
    assert outputs.dtype == dtype
    gradients = torch.autograd.grad(outputs.square().sum(), list(encoder.parameters()))
    assert all(gradient.ne(0).any() for gradient in gradients)


@pytest.mark.parametrize(
    ("shape", "size", "layers"),
    [
        ((3, 7, 7), 147, 0),
        ((1, 32, 32), 1024, 0),
        ((1, 32, 33), 256, 15),
        ((1, 36, 36), 512, 3),
        (ATARI, 512, 3),
    ],
)
def test_small_images_need_no_convolutions(shape: tuple[int, int, int], size: int, layers: int) -> None:
    network, output_size = convolutions(shape)
    image = torch.arange(2.0 * math.prod(shape)).view(2, *shape)
    outputs = network(image)
    assert output_size == size
    assert outputs.shape == (2, size)
    assert sum(isinstance(module, nn.Conv2d) for module in network.modules()) == layers
    if not layers:
        assert torch.equal(outputs, image.view(2, size))


@pytest.mark.parametrize("name", ["nature", "impala"])
def test_bytes_are_scaled_to_the_range_0_to_1(name: str) -> None:
    encoder: ImageEncoder = encoder_of(name, 0, (2, 40, 40)).to(torch.float64)
    (image,) = pixels(3, (2, 40, 40))
    image[0], image[1] = 0, 255
    original = image.clone()
    outputs = encoder(torch.empty(3, 0, dtype=torch.float64), (image,))
    expected = encoder.networks[0](image.to(torch.float64) / 255)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-12)
    assert torch.equal(image, original)


@pytest.mark.parametrize("name", ["nature", "impala", "grid"])
def test_images_may_be_views_of_rows(name: str) -> None:
    shapes = [(3, 36, 36), (1, 40, 36)]
    encoder, images = encoder_of(name, 0, *shapes), pixels(4, *shapes)
    rows = torch.cat([image.flatten(1) for image in images], 1)
    views = [
        part.unflatten(1, shape) for part, shape in zip(rows.split([3 * 36 * 36, 40 * 36], 1), shapes, strict=True)
    ]
    no_features = torch.empty(4, 0)
    assert torch.equal(encoder(no_features, views), encoder(no_features, images))


@pytest.mark.parametrize("name", ["nature", "impala", "grid"])
def test_initial_weights_follow_from_the_generator(name: str) -> None:
    first, second = encoder_of(name, 2, (1, 36, 36)), encoder_of(name, 2, (1, 36, 36))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("orthogonal", [True, False])
def test_orthogonal_initial_weights(orthogonal: bool) -> None:
    encoder = encoder_of("nature", 2, ATARI, orthogonal=orthogonal)
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            assert bool(layer.bias.eq(0).all()) == orthogonal
            rows = layer.weight.detach().flatten(1)
            rows = rows if rows.shape[0] <= rows.shape[1] else rows.t()
            assert torch.allclose(rows @ rows.t(), 2 * torch.eye(len(rows)), atol=1e-4) == orthogonal


GRID = (3, 7, 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_code_of_a_grid_has_a_learned_vector(dtype: torch.dtype) -> None:
    encoder: ImageEncoder = encoder_of("grid", 0, GRID).to(dtype)
    (image,) = pixels(4, GRID)
    image[0], image[1] = 0, 255
    original = image.clone()
    codes, *later_layers = encoder.networks[0]  # type: ignore[misc]
    chosen = functional.one_hot(image.to(torch.int64), 256).to(dtype)  # [N, C, H, W, 256]
    cells = torch.einsum("nchwk,cke->nehw", chosen, codes.table.view(3, 256, -1))
    assert cells.shape == (4, 16, 7, 7)
    torch.testing.assert_close(codes(image), cells, rtol=0, atol=1e-6)
    for layer in later_layers:
        cells = cells.permute(0, 2, 3, 1).reshape(4, -1) if isinstance(layer, _FlattenChannelsLast) else layer(cells)
    torch.testing.assert_close(encoder(torch.empty(4, 0, dtype=dtype), (image,)), cells, rtol=0, atol=1e-5)
    assert torch.equal(image, original)


def test_initial_vectors_of_grid_cells_have_unit_variance() -> None:
    table = encoder_of("grid", 0, GRID).networks[0][0].table
    cells = table.detach().view(3, 256, 16).sum(0)
    assert 0.95 < cells.std() < 1.05
    assert (table[1:] - table[:-1]).abs().sum(1).min() > 0.1, "no two codes are the same"


def test_only_codes_in_the_images_get_a_gradient() -> None:
    encoder = encoder_of("grid", 0, GRID)
    image = torch.full((2, *GRID), 5, dtype=torch.uint8)
    image[1, 2] = 200
    gradient = torch.autograd.grad(encoder(torch.empty(2, 0), (image,)).sum(), encoder.networks[0][0].table)[0]
    assert gradient.ne(0).any(1).nonzero().flatten().tolist() == [5, 256 + 5, 512 + 5, 512 + 200]


@pytest.mark.parametrize("shape", [(3, 4, 7), (3, 7, 4)])
def test_grid_rejects_small_images(shape: tuple[int, int, int]) -> None:
    with pytest.raises(
        ValueError, match=f"'grid', which needs images of at least 5 × 5, but .* {shape[1]} × {shape[2]}"
    ):
        encoder_of("grid", 0, GRID, shape)


@pytest.mark.parametrize("shape", [(3, 5, 5), (1, 35, 84), (1, 84, 35)])
def test_nature_rejects_small_images(shape: tuple[int, int, int]) -> None:
    message = (
        f"policy.encoder is 'nature', which needs images of at least 36 × 36, but observations hold one of {shape[1]} ×"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        encoder_of("nature", 0, ATARI, shape)


@pytest.mark.parametrize("name", ["nature", "impala", "grid"])
def test_image_encoders_reject_observations_without_images(name: str) -> None:
    with pytest.raises(ValueError, match=f"policy.encoder is '{name}', but observations hold no images"):
        encoder_of(name, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["nature", "impala", "grid"])
def test_gradients_on_a_gpu_are_repeatable(name: str) -> None:
    """For example, gradients of the overlapping windows of max_pool2d must not be added in order of arrival."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")  # as in every rank; a warning fails the test
    try:
        encoder, (image,) = encoder_of(name, 0, ATARI).to("cuda"), pixels(64, ATARI)
        digests = set()
        for _ in range(5):
            encoder.zero_grad()
            encoder(torch.empty(64, 0, device="cuda"), (image.to("cuda"),)).square().sum().backward()
            gradients = [parameter.grad.flatten().cpu() for parameter in encoder.parameters()]
            digests.add(bytes(torch.cat(gradients).numpy()))
        assert len(digests) == 1
    finally:
        torch.set_deterministic_debug_mode(mode)
