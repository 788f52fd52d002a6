"""What all methods of curiosity have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from lockstep.curiosity.embedding import ActionEncoder, Embedding
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.models.normalization import RunningStatistics

if TYPE_CHECKING:
    from lockstep.envs.spaces import Spaces
    from lockstep.rollout import Rollout

__all__ = ["Curiosity", "Images", "Reduce", "Transitions", "fixed"]

Reduce = Callable[[Tensor], Tensor]
"""What this rank's shards contribute to a sum, `[shards, n]` float64 -> the sum over all shards of all ranks, `[n]`."""
Images = tuple[Tensor, Tensor] | None
"""Bytes `[K, P]` of the observations before and after steps, if there are images."""

_LIMIT = 5.0
_BLOCK = 256
"""Images that go through a network at once."""


@dataclass
class Transitions:
    """One shard's rollout as methods see it, with letters as in `Rollout`. All on the CPU."""

    features: Tensor
    """`[T + 1, B, F]`, shifted and scaled to mean 0 and standard deviation 1, within ±5."""
    pixels: Tensor
    """`[T + 1, B, P]` uint8."""
    actions: Tensor
    """`[T, B, E]`, see `ActionEncoder`."""
    valid: Tensor
    """`[T, B]` bool: False for reset rows, where rewards are not looked at."""
    embedded: dict[nn.Module, Tensor] = field(default_factory=dict)
    """What networks that are never trained have made of it."""

    @property
    def episodes(self) -> Tensor:
        """`[T + 1, B]` int64: which episode an observation belongs to, counted from 0 in each environment."""
        over = (~self.valid).to(torch.int64)
        return torch.cat([torch.zeros_like(over[:1]), over.cumsum(0)])


class Curiosity(nn.Module, ABC):
    """A method: how new is what a step led to?

    Everything it computes of one shard depends on that shard alone, and on sums over all shards. Parameters that need a gradient are
    trained along with the policy; the others stay what the seed made them. `moments` hold whatever is averaged over the whole run.
    """

    losses: ClassVar[tuple[str, ...]] = ()
    """Names, as metrics, of what `loss` gives; empty for a method that trains nothing."""
    sees_images: ClassVar[bool] = False
    """Whether `loss` wants images, if observations hold some."""

    def __init__(self, spaces: "Spaces", config: CuriosityConfig, squash: bool, dtype: torch.dtype) -> None:
        """`squash` says how the policy's actions become the environment's. First weights come from PyTorch's global generator."""
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.code = ActionEncoder(spaces, squash, dtype)
        channels = config.channels
        kept, self.images, start = [], [], 0
        for count, height, width in spaces.images:
            taken = count if channels is None else min(channels, count)
            kept.append(torch.arange(start + (count - taken) * height * width, start + count * height * width))
            self.images.append((taken, height, width))
            start += count * height * width
        self._kept = torch.cat(kept) if kept and channels is not None else None
        self.feature_size = spaces.feature_size
        sizes = {"features": spaces.feature_size, "pixels": sum(map(len, kept)), "returns": 1}
        self.moments = {name: RunningStatistics(size) for name, size in sizes.items() if size}
        self.refresh()

    @property
    def weights(self) -> tuple[float, ...]:
        """Of each of the `losses`, in what is trained."""
        return (1.0,) * len(self.losses)

    @property
    def width(self) -> int:
        """C, the number of `columns`."""
        return 0

    @property
    def key(self) -> str:
        """Names all that the loss depends on besides shapes."""
        return f"{self} {self.weights} {self.config.share} {self.code}"

    @abstractmethod
    def reward(
        self, steps: Sequence[Transitions], carried: Sequence[dict[str, Tensor]], reduce: Reduce
    ) -> Sequence[Tensor]:
        """How new what each step led to is, `[T, B]` for each of this rank's shards.

        Args:
            steps: Those of the shards.
            carried: What `carry` gave for each, to be brought up to date in place.
            reduce: Called equally often on all ranks.
        """

    def columns(self, steps: Transitions) -> Tensor:
        """`[T × B, C]`: what `loss` is to see of every step, besides images."""
        return steps.features.new_zeros(steps.valid.numel(), 0)

    def loss(self, columns: Tensor, images: Images) -> Tensor:
        """`[K, C]` -> `[K, len(losses)]`, for steps in any order."""
        raise NotImplementedError(f"{type(self).__name__} trains nothing")

    def carry(self, count: int) -> dict[str, Tensor]:
        """What is remembered of the present episodes of `count` environments, when they begin."""
        return {}

    def embedding(self, extra: int = 0) -> Embedding:
        """A network from an observation to `feature_size` numbers, with `extra` more hidden layers."""
        hidden = (*self.config.hidden, *[self.config.hidden[-1]] * extra)
        return Embedding(self.feature_size, self.images, hidden, self.config.feature_size).to(self.dtype)

    def steps(self, rollout: "Rollout") -> Transitions:
        """A rollout, as methods see it."""
        features = rollout.observations[..., : self.feature_size]
        if "features" in self.moments:
            features = ((features - self._shifts["features"]) * self._scales["features"]).clamp(-_LIMIT, _LIMIT)
        valid = rollout.valid
        coded = self.code(rollout.actions.flatten(0, 1)).view(*valid.shape, -1)
        return Transitions(features, rollout.pixels, coded, valid)

    def seen(self, pixels: Tensor) -> Tensor:
        """Bytes of images `[N, P]` -> `[N, P']`, those channels that are looked at, shifted and scaled as features are."""
        own = pixels if self._kept is None else pixels[:, self._kept.to(pixels.device)]
        shift, scale = self._shifts["pixels"].to(own.device), self._scales["pixels"].to(own.device)
        return ((own.to(self.dtype) - shift) * scale).clamp(-_LIMIT, _LIMIT)

    @torch.no_grad()
    def embed(self, network: nn.Module, steps: Transitions) -> Tensor:
        """`[T + 1, B, size]`, what a network makes of all observations."""
        if network in steps.embedded:
            return steps.embedded[network]
        rows, pixels = steps.features.flatten(0, 1), steps.pixels.flatten(0, 1)
        device = next(network.parameters()).device
        if not self.images:
            found: Tensor = network(rows.to(device), None)
        else:
            blocks = zip(rows.split(_BLOCK), pixels.split(_BLOCK), strict=True)
            found = torch.cat([network(own.to(device), self.seen(images.to(device))) for own, images in blocks])
        found = found.view(*steps.features.shape[:2], -1).cpu()
        if not any(parameter.requires_grad for parameter in network.parameters()):
            steps.embedded[network] = found
        return found

    def observe(self, rollouts: Sequence["Rollout"], reduce: Reduce) -> None:
        """Takes observations into the moments, those of all shards."""
        names = [name for name in ("features", "pixels") if name in self.moments]
        sums = []
        for rollout in rollouts:
            valid, own = rollout.valid.flatten(), {}
            own["features"] = rollout.observations[1:].flatten(0, 1)[:, : self.feature_size]
            own["pixels"] = rollout.pixels[1:].flatten(0, 1)
            if self._kept is not None:
                own["pixels"] = own["pixels"][:, self._kept]
            sums.append(torch.cat([self.moments[name].sums(own[name], valid) for name in names]))
        total = reduce(torch.stack(sums))
        for name in names:
            moments = self.moments[name]
            width = RunningStatistics.width(moments.mean.numel())
            moments.merge(total[:width], moments.mean)
            total = total[width:]
        self.refresh()

    def refresh(self) -> None:
        """Brings what observations are shifted and scaled by in step with the moments, after those have changed."""
        self._shifts = {name: moments.mean.to(self.dtype) for name, moments in self.moments.items()}
        self._scales = {name: moments.std.reciprocal().to(self.dtype) for name, moments in self.moments.items()}

    def parts(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}


def fixed(network: nn.Module) -> nn.Module:
    """A network that is never trained."""
    return network.requires_grad_(False)
