"""The `policy` section of the config."""

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["BUILT_IN", "PolicyConfig"]

BUILT_IN = {
    "encoder": ("auto", "mlp", "nature", "impala", "grid"),
    "core": ("none", "lstm", "gru", "mingru"),
    "head": ("mlp",),
    "distribution": ("gaussian", "gaussian-state-std", "gsde", "beta"),
}
"""Values of the fields that also take registered names."""

_OWN_NOISE = {"beta": "independent from step to step", "gsde": "correlated by policy.sde_sample_freq"}
"""Distributions whose noise has no exponent, with its correlation."""
_MAX_LAYERS = 100
"""Largest number of hidden layers in a row."""


@dataclass(frozen=True)
class PolicyConfig:
    """The policy and its critic."""

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    value_hidden: tuple[int, ...] | None = None
    """Widths of the hidden layers of the critic, with encoder `mlp`. None: those of `hidden`."""
    head: str = "mlp"
    """Layers between the encoder or the memory and the last linear layer, one module each for policy and critic, also if `shared`. `mlp`: the
    layers `head_hidden`; or a name that `register_head` has registered."""
    head_hidden: tuple[int, ...] = ()
    """Widths of the hidden layers of the heads, which follow the encoder and the memory. With such layers, a registered head or memory, `hidden`
    and `value_hidden` may be empty."""
    activation: Literal["tanh", "relu", "elu", "silu", "gelu"] = "tanh"
    """Activation function of the hidden layers. `gelu` is its approximation by tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
    encoder: str = "auto"
    """Network from an observation to features. `mlp`: the hidden layers, for vectors; `nature` (Mnih et al. 2015) and `impala` (Espeholt et
    al. 2018): convolutions, for images; `grid`: for images whose bytes are codes, such as MiniGrid's; or one that `register_encoder` has
    registered. `auto`: `nature` if there are images, else `mlp`."""
    core: str = "none"
    """Memory of the policy, between encoder and heads: `lstm`, `gru`, `mingru` (trained in parallel over time), or one that
    `register_core` has registered. `none`: actions depend on the current observation only."""
    core_size: int = 128
    """Output size of each layer of the memory."""
    core_layers: int = 1
    """Number of layers of the memory."""
    shared: bool = False
    """One trunk (encoder and memory) for policy and critic instead of one each."""
    orthogonal: bool = True
    """Orthogonal initialization: gain √2 in the trunk, 0.01 in the output layer of the policy, 1 in that of the critic. Off: PyTorch's default."""
    distribution: str = "gaussian"
    """Distribution of continuous actions. `gaussian`: normal, with learned standard deviations that do not depend on the observation;
    `gaussian-state-std`: with standard deviations that are outputs of the policy; `gsde`: with noise that is a function of the features of the
    last hidden layer, drawn every `sde_sample_freq` steps (Raffin et al. 2022, arXiv:2005.05719); `beta`: between the bounds, which must be
    finite (Chou et al. 2017); or one that `register_distribution` has registered."""
    log_std: float | None = None
    """Continuous actions: natural logarithm of the initial standard deviation; with `beta`, in units of half the range between the bounds, and
    at most about that of the uniform distribution; with `gsde`, of the entries of the noise matrix. None: -ln(A) / 2 for A components, so that the expected squared
    norm of the initial noise is 1 for any A; with `gsde` and L features, -ln(A L) / 2."""
    sde_sample_freq: int = 4
    """Number of steps after which an environment draws new noise, with distribution `gsde`; it also does at the beginning of each rollout."""
    noise_exponent: float = 0.0
    """Continuous actions: exponent β of the exploration noise, whose power over the steps of a rollout is 1 / f^β. 0: white noise,
    independent from step to step; 1: pink noise. Correlated noise explores further (Hollenstein et al. 2024, arXiv:2312.11091)."""
    squash: bool | None = None
    """Continuous actions: map actions into their bounds by tanh. Off: clip them to their bounds. None: on if a range between bounds is more than
    40 times the initial standard deviation, which would explore little of it; then all components need bounds."""
    normalize_observations: bool | None = None
    """Normalize observations by their running mean and standard deviation, over all shards, and clip them to ±10. None: on, unless they
    are images only."""

    def __post_init__(self) -> None:
        lists = {"hidden": self.hidden, "value_hidden": self.value_hidden, "head_hidden": self.head_hidden}
        for name, widths in lists.items():
            if widths is not None and len(widths) > _MAX_LAYERS:
                raise ValueError(f"policy.{name} has {len(widths):,} widths: it must have at most {_MAX_LAYERS}")
            if any(not 1 <= width <= 16_384 for width in widths or ()):
                raise ValueError(f"policy.{name} is {list(widths or ())}: each width must be from 1 to 16,384")
        has_other_layers = self.head_hidden or self.head != "mlp" or self.core != "none"
        if not (has_other_layers or (self.hidden and self.critic_hidden)):
            name = "value_hidden" if self.hidden else "hidden"
            raise ValueError(
                f"policy.{name} is []: it must name at least one width, except with policy.head_hidden, policy.head or policy.core"
            )
        if self.value_hidden is not None and self.shared:
            raise ValueError(
                f"policy.value_hidden is {list(self.value_hidden)}: with policy.shared, policy and critic have the same hidden layers"
            )
        for name in ("core_size", "core_layers"):
            if not 1 <= getattr(self, name) <= 16_384:
                raise ValueError(f"policy.{name} is {getattr(self, name)}: it must be from 1 to 16,384")
        self._check_distribution()
        if self.log_std is not None and not -10 <= self.log_std <= 5:
            raise ValueError(f"policy.log_std is {self.log_std}: it must be between -10 and 5")
        if not 0 <= self.noise_exponent <= 2:
            raise ValueError(f"policy.noise_exponent is {self.noise_exponent}: it must be between 0 and 2")

    def _check_distribution(self) -> None:
        """Raise ValueError if fields can't be combined with the distribution."""
        if self.distribution == "beta" and self.squash:
            raise ValueError(
                "policy.squash is true: it can't be combined with policy.distribution 'beta', whose actions lie within their bounds already"
            )
        if self.distribution in _OWN_NOISE and self.noise_exponent:
            raise ValueError(
                f"policy.noise_exponent is {self.noise_exponent}: it can't be combined with policy.distribution {self.distribution!r}, whose noise is "
                f"{_OWN_NOISE[self.distribution]}"
            )
        if self.sde_sample_freq != PolicyConfig.sde_sample_freq and self.distribution != "gsde":
            raise ValueError(f"policy.sde_sample_freq is {self.sde_sample_freq}: it is for policy.distribution 'gsde'")
        if self.distribution == "gsde" and self.head != "mlp" and not self.head_hidden:
            raise ValueError(
                f"policy.head is {self.head!r}: with policy.distribution 'gsde', the last width of policy.head_hidden must be the output_size of the head"
            )
        if self.sde_sample_freq < 1:
            raise ValueError(f"policy.sde_sample_freq is {self.sde_sample_freq}: it must be at least 1")

    @property
    def critic_hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers of the critic."""
        return self.hidden if self.value_hidden is None else self.value_hidden

    @property
    def head_inputs(self) -> int:
        """Number of inputs of the last layer of the policy, for built-in cores and vectors; with `head_hidden` and head `mlp`, for all policies."""
        widths = self.head_hidden or (() if self.core == "none" else (self.core_size,)) or self.hidden
        return widths[-1]

    def initial_log_std(self, size: int) -> float:
        """Return `log_std` for actions with `size` continuous components, at least one."""
        summed = size * self.head_inputs if self.distribution == "gsde" else size
        return round(math.log(1 / summed) / 2, 3) if self.log_std is None else self.log_std

    def initial_std(self, size: int) -> float:
        """Return the initial standard deviation of a component, with `gsde` for features of magnitude 1."""
        features = self.head_inputs if self.distribution == "gsde" else 1
        return math.exp(self.initial_log_std(size)) * math.sqrt(features)
