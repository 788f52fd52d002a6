"""Encoders of images, and of features that come with them, for cores and heads."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.models.layers import orthogonal
from lockstep.models.settings import PolicyConfig

__all__ = ["ImageEncoder", "convolutions", "grid", "impala", "nature"]

_Shape = tuple[int, int, int]
"""Channels, height and width of an image."""

_GAIN = math.sqrt(2)
_SMALLEST_NATURE = 36
"""Smallest height and width of an image for the `nature` network."""
_FLATTEN_LIMIT = 1_024
"""Largest number of values of an image that is flattened instead of convolved, see `convolutions`."""
_FEATURE_OUTPUTS = 64
"""Number of outputs of the layer for the features that come with images."""
_CODES, _CODE_SIZE = 256, 16
"""Number of values of a byte, and size of the embedding of each."""
_ReadImage = Callable[[Tensor, torch.dtype], Tensor]
"""Function from the bytes of an image `[N, C, H, W]` and the dtype of the networks to the input of its network."""


class ImageEncoder(nn.Module):
    """Encoder with one network for each image, and a linear layer with a ReLU for the other features, if any.

    The outputs of the image networks, then those of the layer, are concatenated. The initial weights are drawn from
    PyTorch's global generator, in PyTorch's default dtype; use `to` to convert them.
    """

    def __init__(
        self,
        feature_size: int,
        images: Sequence[_Shape],
        config: PolicyConfig,
        network: Callable[[_Shape], tuple[nn.Module, int]],
        read: _ReadImage | None = None,
    ) -> None:
        """Create the networks for `images`, given by their shapes.

        `network` creates the network for an image of a given shape, and returns it with its number of outputs. `read`
        converts the bytes of an image to the input of its network; by default it scales them to [0, 1].
        """
        super().__init__()
        self._read = read or _scaled
        sized_networks = [network(shape) for shape in images]
        self.networks = nn.ModuleList(module for module, _ in sized_networks)
        self.features = nn.Sequential(nn.Linear(feature_size, _FEATURE_OUTPUTS), nn.ReLU()) if feature_size else None
        self.output_size = sum(size for _, size in sized_networks) + (_FEATURE_OUTPUTS if feature_size else 0)
        for layer in self.modules():
            if config.orthogonal and isinstance(layer, nn.Conv2d | nn.Linear):
                assert layer.bias is not None
                orthogonal(layer.weight, _GAIN)
                nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor, images: Sequence[Tensor]) -> Tensor:
        """Encode features `[N, F]` and images, uint8 `[N, C, H, W]` each, as `[N, output_size]`."""
        encoded = [
            network(self._read(image, features.dtype)) for network, image in zip(self.networks, images, strict=True)
        ]
        if self.features is not None:
            encoded.append(self.features(features))
        return torch.cat(encoded, 1)


def nature(feature_size: int, images: tuple[_Shape, ...], config: PolicyConfig) -> ImageEncoder:
    """Create an encoder with the network of Mnih et al. (2015), 512 outputs per image of at least 36 × 36, else ValueError."""
    _check("nature", images, smallest=_SMALLEST_NATURE)
    return ImageEncoder(feature_size, images, config, _nature)


def impala(feature_size: int, images: tuple[_Shape, ...], config: PolicyConfig) -> ImageEncoder:
    """Create an encoder with the network of Espeholt et al. (2018), 256 outputs per image. Raises ValueError without images."""
    _check("impala", images, smallest=1)
    return ImageEncoder(feature_size, images, config, _impala)


def grid(feature_size: int, images: tuple[_Shape, ...], config: PolicyConfig) -> ImageEncoder:
    """Create an encoder for images whose bytes are codes rather than brightness, with 128 outputs per image.

    An example is MiniGrid (Chevalier-Boisvert et al. 2023, arXiv:2306.13831), whose images hold the kind, color and
    state of each cell. Each code of each channel has a learned embedding. The embeddings of the channels of a cell are
    added; two convolutions and a linear layer follow. Raises ValueError if there are no images, or if one is smaller
    than 5 × 5.
    """
    _check("grid", images, smallest=5)
    return ImageEncoder(feature_size, images, config, _grid, _bytes)


def convolutions(shape: _Shape) -> tuple[nn.Module, int]:
    """Create a network from an image `[N, C, H, W]` to features for hidden layers. Return it with its number of outputs.

    The network is that of `nature`, or that of `impala` for an image that is too small for `nature`. An image of at
    most 1,024 values, such as MiniGrid's 7 × 7 cells, is flattened: convolutions would cost far more.
    """
    if math.prod(shape) <= _FLATTEN_LIMIT:
        return nn.Flatten(), math.prod(shape)
    return (_nature if min(shape[1:]) >= _SMALLEST_NATURE else _impala)(shape)


def _check(name: str, images: tuple[_Shape, ...], smallest: int) -> None:
    if not images:
        raise ValueError(f"policy.encoder is '{name}', but observations hold no images: it must be 'mlp' or 'auto'")
    for _, height, width in images:
        if min(height, width) < smallest:
            raise ValueError(
                f"policy.encoder is '{name}', which needs images of at least {smallest} × {smallest}, "
                f"but observations hold one of {height} × {width}: 'impala' takes any"
            )


def _scaled(image: Tensor, dtype: torch.dtype) -> Tensor:
    """Scale the bytes to [0, 1], in channels-last memory format."""
    # channels last: convolutions train 1.4 times as fast; converted before the dtype, since bytes are cheaper to move.
    # clone always copies, so that the strides do not depend on where the images lie in memory
    channels_last = image.clone(memory_format=torch.channels_last)
    return channels_last.to(dtype, memory_format=torch.channels_last).mul_(1 / 255)


def _bytes(image: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bytes unchanged, for networks that take codes."""
    return image


def _nature(shape: _Shape) -> tuple[nn.Module, int]:
    channels, height, width = shape
    layers: list[nn.Module] = []
    for outputs, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        layers += [nn.Conv2d(channels, outputs, kernel, stride), nn.ReLU(inplace=True)]
        channels, height, width = outputs, (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, 512), nn.ReLU()), 512


def _impala(shape: _Shape) -> tuple[nn.Module, int]:
    channels, height, width = shape
    layers: list[nn.Module] = []
    for outputs in (16, 32, 32):
        layers += [_convolution(channels, outputs), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [_Residual(outputs), _Residual(outputs)]
        channels, height, width = outputs, (height + 1) // 2, (width + 1) // 2
    layers += [nn.ReLU(), nn.Flatten(), nn.Linear(channels * height * width, 256), nn.ReLU()]
    return nn.Sequential(*layers), 256


def _grid(shape: _Shape) -> tuple[nn.Module, int]:
    channels, height, width = shape
    layers = [_Codes(channels), nn.Conv2d(_CODE_SIZE, 32, 3), nn.ReLU(inplace=True)]
    layers += [nn.Conv2d(32, 32, 3), nn.ReLU(inplace=True), _FlattenChannelsLast()]
    return nn.Sequential(*layers, nn.Linear(32 * (height - 4) * (width - 4), 128), nn.ReLU()), 128


class _Codes(nn.Module):
    """Embedding of codes: bytes `[N, C, H, W]` -> `[N, 16, H, W]`, the sum of the embeddings of the channels' codes."""

    _starts: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(channels * _CODES, _CODE_SIZE))
        # on the device meta, random numbers and arange import TorchDynamo, which takes a second
        if not self.table.is_meta:
            nn.init.normal_(self.table, std=1 / math.sqrt(channels))
        self.register_buffer("_starts", torch.tensor(range(0, channels * _CODES, _CODES)), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        count, _, height, width = image.shape
        codes = image.permute(0, 2, 3, 1).to(torch.int64) + self._starts
        if torch.compiler.is_exporting():  # exported models have no kernel for embedding_bag
            return functional.embedding(codes, self.table).sum(3).permute(0, 3, 1, 2)
        cells = functional.embedding_bag(codes.flatten(0, 2), self.table, mode="sum")
        return cells.view(count, height, width, -1).permute(0, 3, 1, 2)  # channels last: faster convolutions


class _FlattenChannelsLast(nn.Module):
    """Flatten layer in channels-last order. It trains 1.4 times as fast as nn.Flatten, which permutes the values."""

    def forward(self, cells: Tensor) -> Tensor:
        return cells.permute(0, 2, 3, 1).flatten(1)


_convolution = partial(nn.Conv2d, kernel_size=3, padding=1)


class _Residual(nn.Module):
    """Residual block of the `impala` network."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.ReLU(), _convolution(channels, channels), nn.ReLU(inplace=True), _convolution(channels, channels)
        )

    def forward(self, rows: Tensor) -> Tensor:
        residual: Tensor = self.inner(rows)
        return rows + residual
