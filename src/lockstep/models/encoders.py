"""What makes of images, and of features beside them, the features that cores and heads work with."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.models.settings import PolicyConfig

__all__ = ["ImageEncoder", "convolutions", "grid", "impala", "nature"]

_Shape = tuple[int, int, int]
"""Channels, height and width."""

_GAIN = math.sqrt(2)
_SMALLEST = 36
"""Height and width that the first network can do with."""
_FEW = 1_024
"""Numbers of an image that layers can see at once."""
_FEATURES = 64
"""Outputs that the features beside images have in an encoder's output."""
_CODES, _CODE_SIZE = 256, 16
"""Codes that a byte can be, and numbers that each stands for."""
_Read = Callable[[Tensor, torch.dtype], Tensor]
"""Bytes of an image `[N, C, H, W]` and the networks' type -> what the image's network takes."""


class ImageEncoder(nn.Module):
    """One network for each image, and a layer with a ReLU for features beside them; their outputs lie one after the other.

    The first weights are drawn from PyTorch's global generator, in its default type; `to` gives another.
    """

    def __init__(
        self,
        feature_size: int,
        images: Sequence[_Shape],
        config: PolicyConfig,
        network: Callable[[_Shape], tuple[nn.Module, int]],
        read: _Read | None = None,
    ) -> None:
        """`network` makes the one for an image of a shape, and tells how many outputs it has. Without `read` it takes numbers from 0 to 1."""
        super().__init__()
        self._read = read or _scaled
        made = [network(shape) for shape in images]
        self.networks = nn.ModuleList(module for module, _ in made)
        self.features = nn.Sequential(nn.Linear(feature_size, _FEATURES), nn.ReLU()) if feature_size else None
        self.output_size = sum(size for _, size in made) + (_FEATURES if feature_size else 0)
        for layer in self.modules():
            if config.orthogonal and isinstance(layer, nn.Conv2d | nn.Linear):
                assert layer.bias is not None
                nn.init.orthogonal_(layer.weight, _GAIN)
                nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor, images: Sequence[Tensor]) -> Tensor:
        """Features `[N, F]` and images, uint8 `[N, C, H, W]` each -> `[N, output_size]`."""
        found = [
            network(self._read(image, features.dtype)) for network, image in zip(self.networks, images, strict=True)
        ]
        if self.features is not None:
            found.append(self.features(features))
        return torch.cat(found, 1)


def nature(feature_size: int, images: tuple[_Shape, ...], config: PolicyConfig) -> ImageEncoder:
    """The network of Mnih et al. (2015), 512 outputs an image. Raises ValueError without images, or for one that is too small."""
    _check("nature", images, smallest=_SMALLEST)
    return ImageEncoder(feature_size, images, config, _nature)


def impala(feature_size: int, images: tuple[_Shape, ...], config: PolicyConfig) -> ImageEncoder:
    """The residual network of Espeholt et al. (2018), 256 outputs an image, for images of any size. Raises ValueError without images."""
    _check("impala", images, smallest=1)
    return ImageEncoder(feature_size, images, config, _impala)


def grid(feature_size: int, images: tuple[_Shape, ...], config: PolicyConfig) -> ImageEncoder:
    """For grids whose bytes are names rather than shades, such as MiniGrid's (Chevalier-Boisvert et al. 2023, arXiv:2306.13831), which tell
    kind, colour and state of each cell: each code of each channel stands for numbers that are learned, and these are added, then come two
    convolutions and 128 outputs. Raises ValueError without images, or for one that is too small.
    """
    _check("grid", images, smallest=5)
    return ImageEncoder(feature_size, images, config, _grid, _bytes)


def convolutions(shape: _Shape) -> tuple[nn.Module, int]:
    """What a hidden layer is to see of an image, from numbers `[N, C, H, W]`, and how many outputs that has: the network of `nature`, or that
    of `impala` where it is too small; of few numbers, such as MiniGrid's 7 × 7 cells, these themselves: convolutions would cost far more.
    """
    if math.prod(shape) <= _FEW:
        return nn.Flatten(), math.prod(shape)
    return (_nature if min(shape[1:]) >= _SMALLEST else _impala)(shape)


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
    """From 0 to 1. Channels last: convolutions train 1.4 times as fast; and bytes are cheaper to turn round than floats."""
    turned = image.clone(
        memory_format=torch.channels_last
    )  # always a copy, whose strides don't depend on where images lie
    return turned.to(dtype, memory_format=torch.channels_last).mul_(1 / 255)


def _bytes(image: Tensor, dtype: torch.dtype) -> Tensor:
    """As they are."""
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
    layers += [nn.Conv2d(32, 32, 3), nn.ReLU(inplace=True), _Flattened()]
    return nn.Sequential(*layers, nn.Linear(32 * (height - 4) * (width - 4), 128), nn.ReLU()), 128


class _Codes(nn.Module):
    """Bytes `[N, C, H, W]` -> numbers `[N, 16, H, W]`, the sum of what the codes of the channels stand for."""

    _starts: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(channels * _CODES, _CODE_SIZE))
        nn.init.normal_(self.table, std=1 / math.sqrt(channels))
        self.register_buffer("_starts", torch.arange(channels) * _CODES, persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        count, _, height, width = image.shape
        codes = image.permute(0, 2, 3, 1).to(torch.int64) + self._starts
        if torch.compiler.is_exporting():  # elsewhere there is no kernel for the sum
            return functional.embedding(codes, self.table).sum(3).permute(0, 3, 1, 2)
        cells = functional.embedding_bag(codes.flatten(0, 2), self.table, mode="sum")
        return cells.view(count, height, width, -1).permute(0, 3, 1, 2)  # channels last, as convolutions like it


class _Flattened(nn.Module):
    """Cell by cell, as what is channels last lies: 1.4 times as fast to train as nn.Flatten, which turns it round."""

    def forward(self, cells: Tensor) -> Tensor:
        return cells.permute(0, 2, 3, 1).flatten(1)


_convolution = partial(nn.Conv2d, kernel_size=3, padding=1)


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.ReLU(), _convolution(channels, channels), nn.ReLU(inplace=True), _convolution(channels, channels)
        )

    def forward(self, rows: Tensor) -> Tensor:
        changed: Tensor = self.inner(rows)
        return rows + changed
