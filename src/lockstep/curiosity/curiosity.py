"""Base class of the curiosity methods."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from lockstep.compiling.row_kernels import RowKernels
from lockstep.curiosity.embedding import ActionEncoder, Embedding
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces
from lockstep.models.normalization import RunningStatistics
from lockstep.processes.heartbeat import beat
from lockstep.rollout import Rollout

__all__ = ["Curiosity", "Images", "Reduce", "States", "Transitions", "fixed"]

Reduce = Callable[[Tensor], Tensor]
"""Function from the summands of this rank's shards, `[shards, n]` float64, to the sum over all shards of all ranks, `[n]`."""
Images = tuple[Tensor, Tensor] | None
"""Images `[K, P]` uint8 of the observations before and after steps, if there are images."""
States = Sequence[dict[str, Tensor]]
"""Per-episode states of this rank's shards, from `Curiosity.initial_state`; updated in place."""

_LIMIT = 5.0
_BLOCK = 256
"""Images per forward pass."""


@dataclass
class Transitions:
    """One shard's rollout as input of the methods, on the CPU. Shape letters are those of `Rollout`."""

    features: Tensor
    """`[T + 1, B, F]`, normalized to mean 0 and standard deviation 1, and clipped to ±5."""
    pixels: Tensor
    """`[T + 1, B, P]` uint8."""
    actions: Tensor
    """`[T, B, E]`, see `ActionEncoder`."""
    valid: Tensor
    """`[T, B]` bool: False for reset rows, whose rewards are ignored."""
    embedded: dict[nn.Module, Tensor] = field(default_factory=dict)
    """Outputs of networks that are never trained, by network."""

    @property
    def episodes(self) -> Tensor:
        """Episode number of every observation, `[T + 1, B]` int64, counted from 0 in each environment."""
        over = (~self.valid).to(torch.int64)
        return torch.cat([torch.zeros_like(over[:1]), over.cumsum(0)])


class Curiosity(nn.Module, ABC):
    """A method that rewards the novelty of the observation that a step leads to.

    Results for one shard depend only on that shard and on sums over all shards. Parameters that require gradients are trained along with
    the policy; the others keep their initial values. `statistics` hold running statistics over the whole run.
    """

    losses: ClassVar[tuple[str, ...]] = ()
    """Metric names of the columns of `loss`; empty for a method without training."""
    sees_images: ClassVar[bool] = False
    """True if `loss` needs the images of observations, if there are any."""

    def __init__(self, spaces: Spaces, config: CuriosityConfig, squash: bool, dtype: torch.dtype) -> None:
        """Initialize the weights from PyTorch's global generator. `squash` is that of the policy."""
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.kernels: RowKernels | None = None
        """Kernels that compute functions of rows, if they are used."""
        self.action_encoder = ActionEncoder(spaces, squash, dtype)
        channels = config.channels
        self.images: list[tuple[int, int, int]] = []
        self._used: list[slice] = []
        """Pixels of each image that are used."""
        start = 0
        for count, height, width in spaces.images:
            used_channels = count if channels is None else min(channels, count)
            self._used.append(slice(start + (count - used_channels) * height * width, start + count * height * width))
            self.images.append((used_channels, height, width))
            start += count * height * width
        self.feature_size = spaces.feature_size
        sizes = {"features": spaces.feature_size, "pixels": sum(map(math.prod, self.images)), "returns": 1}
        self.statistics = {name: RunningStatistics(size) for name, size in sizes.items() if size}
        self._shifts = {name: torch.zeros(size, dtype=dtype) for name, size in sizes.items() if size}
        self._scales = {name: torch.ones_like(shift) for name, shift in self._shifts.items()}
        self.refresh()

    @property
    def weights(self) -> tuple[float, ...]:
        """Coefficients of the `losses` in the training objective."""
        return (1.0,) * len(self.losses)

    @property
    def width(self) -> int:
        """Number of `columns`, C."""
        return 0

    @abstractmethod
    def reward(self, shards: Sequence[Transitions], states: States, reduce: Reduce) -> Sequence[Tensor]:
        """Compute the novelty of the next observation of every step, `[T, B]` for each of this rank's shards.

        `reduce` must be called the same number of times on every rank.
        """

    def columns(self, transitions: Transitions) -> Tensor:
        """Return the inputs `[T × B, C]` of `loss` for every step, besides images."""
        return transitions.features.new_zeros(transitions.valid.numel(), 0)

    def loss(self, columns: Tensor, images: Images) -> Tensor:
        """Return the losses `[K, len(losses)]` of steps in any order, from their columns `[K, C]`."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def initial_state(self, count: int) -> dict[str, Tensor]:
        """Return the initial per-episode state of `count` environments."""
        return {}

    def embedding(self, extra: int = 0) -> Embedding:
        """Create a network from an observation to `feature_size` features, with `extra` additional hidden layers."""
        hidden = (*self.config.hidden, *[self.config.hidden[-1]] * extra)
        return Embedding(self.feature_size, self.images, hidden, self.config.feature_size).to(self.dtype)

    def transitions(self, rollout: Rollout) -> Transitions:
        """Convert a rollout to the input of the methods."""
        features = rollout.observations[..., : self.feature_size]
        if "features" in self.statistics:
            features = ((features - self._shifts["features"]) * self._scales["features"]).clamp(-_LIMIT, _LIMIT)
        valid = rollout.valid
        actions = self.action_encoder(rollout.actions.flatten(0, 1)).view(*valid.shape, -1)
        return Transitions(features, rollout.pixels, actions, valid)

    def normalize_images(self, pixels: Tensor) -> Tensor:
        """Select the channels of images `[N, P]` uint8 that are used, and normalize them like features, `[N, P']`."""
        used = self._used_pixels(pixels, self.dtype)
        shift, scale = self._shifts["pixels"].to(used.device), self._scales["pixels"].to(used.device)
        return ((used - shift) * scale).clamp(-_LIMIT, _LIMIT)

    def _used_pixels(self, pixels: Tensor, dtype: torch.dtype) -> Tensor:
        parts = [pixels[:, used].to(dtype) for used in self._used]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    @torch.no_grad()
    def compute(self, function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """Compute a function of rows `[N, …]` on the CPU that uses the networks: a module, or a method. It returns `[N, …]`."""
        if self.kernels is not None:
            (result,) = self.kernels.compute(function, lambda block: (function(block),), rows)
            return result
        return function(rows.to(next(self.parameters()).device)).cpu()

    @torch.no_grad()
    def embed(self, network: nn.Module, transitions: Transitions) -> Tensor:
        """Return the outputs `[T + 1, B, size]` of a network for all observations."""
        if network in transitions.embedded:
            return transitions.embedded[network]
        rows, pixels = transitions.features.flatten(0, 1), transitions.pixels.flatten(0, 1)
        if not self.images:
            outputs = self.compute(network, rows)
        elif self.kernels is not None:
            (outputs,) = self.kernels.compute(
                network, lambda features, images: (network(features, self.normalize_images(images)),), rows, pixels
            )
        else:
            device = next(network.parameters()).device
            blocks = zip(rows.split(_BLOCK), pixels.split(_BLOCK), strict=True)
            parts = []
            for features, images in blocks:
                beat()  # all images of a rollout take long without a GPU
                parts.append(network(features.to(device), self.normalize_images(images.to(device))))
            outputs = torch.cat(parts).cpu()
        outputs = outputs.view(*transitions.features.shape[:2], -1)
        if not any(parameter.requires_grad for parameter in network.parameters()):
            transitions.embedded[network] = outputs
        return outputs

    def observe(self, rollouts: Sequence[Rollout], reduce: Reduce) -> None:
        """Update the running statistics with the observations of all shards."""
        names = [name for name in ("features", "pixels") if name in self.statistics]
        sums = []
        for rollout in rollouts:
            valid, inputs = rollout.valid.flatten(), {}
            inputs["features"] = rollout.observations[1:].flatten(0, 1)[:, : self.feature_size]
            inputs["pixels"] = rollout.pixels[1:].flatten(0, 1)
            if self.images:
                inputs["pixels"] = self._used_pixels(inputs["pixels"], torch.uint8)
            sums.append(torch.cat([self.statistics[name].sums(inputs[name], valid) for name in names]))
        total = reduce(torch.stack(sums))
        for name in names:
            running = self.statistics[name]
            width = RunningStatistics.width(running.mean.numel())
            running.merge(total[:width], running.mean)
            total = total[width:]
        self.refresh()

    def refresh(self) -> None:
        """Update the normalization after the running statistics have changed."""
        for name, shift in self._shifts.items():
            # in place: kernels read these tensors
            shift.copy_(self.statistics[name].mean)
            self._scales[name].copy_(self.statistics[name].std.reciprocal())

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}


def fixed(network: nn.Module) -> nn.Module:
    """Exclude a network from training, and return it."""
    return network.requires_grad_(False)
