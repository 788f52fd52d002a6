"""Embeddings of observations, and encodings of actions."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lockstep.envs.spaces import Spaces
from lockstep.models.encoders import convolutions
from lockstep.models.layers import orthogonal

__all__ = ["ActionEncoder", "Embedding"]

_GAIN = math.sqrt(2)


class Embedding(nn.Module):
    """Network from an observation to features: convolutions for each image that is not small, hidden layers with ReLUs, a linear layer.

    Weights are orthogonal with gain √2 (Burda et al. 2019), drawn from PyTorch's global generator.
    """

    def __init__(
        self, feature_size: int, images: Sequence[tuple[int, int, int]], hidden: Sequence[int], size: int
    ) -> None:
        """Create the network, for numeric inputs and for images of the given channels, height and width."""
        super().__init__()
        self._images = tuple(images)
        encoders = [convolutions(shape) for shape in images]
        self.networks = nn.ModuleList(network for network, _ in encoders)
        widths = [feature_size + sum(outputs for _, outputs in encoders), *hidden]
        layers: list[nn.Module] = []
        for inputs, outputs in zip(widths, hidden, strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], size))
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                assert layer.bias is not None
                orthogonal(layer.weight, _GAIN)
                nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor, images: Tensor | None = None) -> Tensor:
        """Return the outputs `[N, size]` for features `[N, F]` and images `[N, P']`, both normalized."""
        inputs = [features]
        if images is not None:
            parts = images.split([math.prod(shape) for shape in self._images], 1)
            for network, image, shape in zip(self.networks, parts, self._images, strict=True):
                inputs.append(network(image.reshape(-1, *shape)))
        outputs: Tensor = self.layers(torch.cat(inputs, 1) if images is not None else features)
        return outputs


class ActionEncoder:
    """Encodes actions for networks: choices as one-hot vectors, continuous components as the environment takes them, scaled to [-1, 1] if
    they have bounds.
    """

    def __init__(self, spaces: Spaces, squash: bool, dtype: torch.dtype) -> None:
        self._choices = spaces.choices
        self._squash = squash
        self._dtype = dtype
        self._continuous = spaces.continuous_size
        low, high = torch.from_numpy(spaces.action_low).to(dtype), torch.from_numpy(spaces.action_high).to(dtype)
        bounded = torch.isfinite(low) & torch.isfinite(high) & (high - low < 1e30)
        self._low, self._high = low, high
        self._middle = torch.where(bounded, (low + high) / 2, 0)
        self._half = torch.where(bounded, (high - low) / 2, 1).clamp_min(1e-6)

    def __repr__(self) -> str:
        return f"{self._choices} {self._squash} {self._low.tolist()} {self._high.tolist()}"

    @property
    def size(self) -> int:
        """Size of an encoded action, E."""
        return sum(self._choices) + self._continuous

    def __call__(self, actions: Tensor) -> Tensor:
        """Encode actions of a rollout, `[N]` int64 or `[N, A]`, as `[N, E]`."""
        rows = actions.reshape(len(actions), -1)
        parts = [
            (rows[:, column : column + 1] == torch.arange(options)).to(self._dtype)
            for column, options in enumerate(self._choices)
        ]
        if self._continuous:
            continuous = rows[:, len(self._choices) :].to(self._dtype)
            scaled = (
                continuous.tanh()
                if self._squash
                else (continuous.clamp(self._low, self._high) - self._middle) / self._half
            )
            parts.append(scaled)
        return torch.cat(parts, 1)

    def loss(self, predicted: Tensor, encoded: Tensor) -> Tensor:
        """Return the prediction loss `[N]` of encoded actions `[N, E]`: the cross entropy of choices, for which `predicted` holds logits, plus
        half the squared error of continuous components.
        """
        loss = predicted.new_zeros(len(predicted))
        sizes = [*self._choices, self._continuous]
        for index, (prediction, target) in enumerate(
            zip(predicted.split(sizes, 1), encoded.split(sizes, 1), strict=True)
        ):
            if index < len(self._choices):
                loss = loss - (prediction.log_softmax(1) * target).sum(1)
            elif self._continuous:
                loss = loss + 0.5 * (prediction - target).square().sum(1)
        return loss
