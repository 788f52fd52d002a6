"""The policy and its critic as multilayer perceptrons."""

import itertools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from lockstep.models.settings import PolicyConfig

__all__ = ["Autocast", "Policy"]

Autocast = Callable[[], AbstractContextManager[object]]
"""Gives the context in which networks compute: `nullcontext`, or PyTorch's autocast for another precision."""

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}
_TRUNK_GAIN, _POLICY_GAIN, _VALUE_GAIN = math.sqrt(2), 0.01, 1.0


class Policy(nn.Module):
    """Observation `[N, O]` -> parameters of the action distribution `[N, P]` and value `[N]`.

    With separate trunks (the default) the two share nothing. A continuous policy has one learned log standard deviation per
    action component that does not depend on the observation. Results have the weights' type, whatever the networks compute in.
    """

    def __init__(
        self,
        observation_size: int,
        head_size: int,
        std_size: int,
        config: PolicyConfig,
        generator: torch.Generator,
        dtype: torch.dtype,
        autocast: Autocast = nullcontext,
    ) -> None:
        """`head_size` outputs come from the observation; `std_size` log standard deviations (0 for discrete) from nothing."""
        super().__init__()
        self._autocast = autocast
        self._dtype = dtype
        widths, activation = (observation_size, *config.hidden), _ACTIVATIONS[config.activation]
        self.trunk = _trunk(widths, activation, dtype)
        self.critic_trunk = None if config.shared else _trunk(widths, activation, dtype)
        self.policy_head = _Linear(widths[-1], head_size, dtype=dtype)
        self.value_head = _Linear(widths[-1], 1, dtype=dtype)
        self.log_std = nn.Parameter(torch.full((std_size,), config.log_std, dtype=dtype)) if std_size else None
        gains: dict[nn.Module, float] = {self.policy_head: _POLICY_GAIN, self.value_head: _VALUE_GAIN}
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                _initialize(layer, gains.get(layer, _TRUNK_GAIN) if config.orthogonal else None, generator)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """`[N, O]` -> (distribution parameters `[N, P]`, values `[N]`)."""
        with self._autocast():
            hidden = self.trunk(observations)
            return self._head(hidden), self._value(hidden, observations)

    def act(self, observations: Tensor) -> Tensor:
        """`[N, O]` -> distribution parameters `[N, P]`, without the critic."""
        with self._autocast():
            return self._head(self.trunk(observations))

    def value(self, observations: Tensor) -> Tensor:
        """`[N, O]` -> values `[N]`, without the policy where they share nothing."""
        with self._autocast():
            return self._value(self.trunk(observations) if self.critic_trunk is None else None, observations)

    def parts(self) -> dict[str, dict[str, nn.Parameter]]:
        """Parameters, by name, by what trains them: `policy` (with a shared trunk, that too) and `value`."""
        named = dict(self.named_parameters())
        value = {name: named[name] for name in named if name.startswith(("critic_trunk.", "value_head."))}
        return {"policy": {name: named[name] for name in named if name not in value}, "value": value}

    def _head(self, hidden: Tensor) -> Tensor:
        head: Tensor = self.policy_head(hidden).to(self._dtype)
        return head if self.log_std is None else torch.cat([head, self.log_std.expand_as(head)], -1)

    def _value(self, hidden: Tensor | None, observations: Tensor) -> Tensor:
        features = self.critic_trunk(observations) if self.critic_trunk is not None else hidden
        values: Tensor = self.value_head(features).to(self._dtype)
        return values.squeeze(-1)


class _Linear(nn.Linear):
    """Made without content: nn.Linear would draw its first weights from the global generator."""

    def reset_parameters(self) -> None:
        """Nothing."""


def _trunk(widths: tuple[int, ...], activation: type[nn.Module], dtype: torch.dtype) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [_Linear(inputs, outputs, dtype=dtype), activation()]
    return nn.Sequential(*layers)


@torch.no_grad()
def _initialize(layer: nn.Linear, gain: float | None, generator: torch.Generator) -> None:
    if gain is None:  # PyTorch's default
        bound = 1 / math.sqrt(layer.in_features)
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    else:
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        layer.bias.zero_()
