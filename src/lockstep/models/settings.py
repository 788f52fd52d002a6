"""The `policy` section of the config."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["PolicyConfig"]


@dataclass(frozen=True)
class PolicyConfig:
    """The policy and its critic."""

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Nonlinearity between the layers."""
    encoder: str = "auto"
    """What makes features of an observation. `mlp`: the hidden layers, for vectors; `nature` (Mnih et al. 2015) and `impala` (Espeholt et
    al. 2018): convolutions, for images; `grid`: for images whose bytes are codes, such as MiniGrid's; or one of your own, see
    `register_encoder`. `auto`: `nature` if there are images, else `mlp`."""
    core: str = "none"
    """Memory, between encoder and heads: `lstm`, `gru`, `mingru` (trains in parallel over time), or one of your own, see `register_core`.
    `none`: the policy sees the present observation only."""
    core_size: int = 128
    """Numbers that a layer of the memory gives to the heads."""
    core_layers: int = 1
    """Layers of the memory."""
    shared: bool = False
    """One trunk (encoder and memory) for policy and critic instead of one each."""
    orthogonal: bool = True
    """Orthogonal initial weights: gain √2 in the trunk, 0.01 in the policy's head, 1 in the critic's. Off: PyTorch's default."""
    log_std: float = 0.0
    """Continuous actions: natural logarithm of the first standard deviation, which is learned but does not depend on the state."""
    squash: bool = False
    """Continuous actions: tanh onto the action's bounds. Off: the action is clipped to its bounds."""
    normalize_observations: bool = False
    """Shift and scale observations by their running mean and standard deviation, over all shards; clipped to ±10."""

    def __post_init__(self) -> None:
        if not self.hidden or any(not 1 <= width <= 16_384 for width in self.hidden):
            raise ValueError(
                f"policy.hidden is {list(self.hidden)}: it must name at least one width, each from 1 to 16,384"
            )
        for name in ("core_size", "core_layers"):
            if not 1 <= getattr(self, name) <= 16_384:
                raise ValueError(f"policy.{name} is {getattr(self, name)}: it must be from 1 to 16,384")
        if not -10 <= self.log_std <= 5:
            raise ValueError(f"policy.log_std is {self.log_std}: it must be between -10 and 5")
