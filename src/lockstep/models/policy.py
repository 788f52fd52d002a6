"""The policy and its critic: encoder, memory (if any), heads."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from lockstep.models.cores import Core
from lockstep.models.layers import ACTIVATIONS, TRUNK_GAIN, Linear, initialize, mlp, seeded
from lockstep.models.registry import core_factory, encoder_factory
from lockstep.models.settings import PolicyConfig

__all__ = ["FORBIDDEN", "Autocast", "Policy"]

Autocast = Callable[[], AbstractContextManager[object]]
"""Gives the context in which networks compute: `nullcontext`, or PyTorch's autocast for another precision."""

FORBIDDEN = -1e9
"""Logit of an option that the mask does not allow: its probability is 0 to the bit, and finite in what it is multiplied with."""

_POLICY_GAIN, _VALUE_GAIN = 0.01, 1.0


class Policy(nn.Module):
    """Observation -> parameters of the action distribution and value.

        row, pixels -> trunk -> core (memory) -> policy_head
                    -> critic_trunk -> critic_core -> value_head      (or, if shared, the policy's trunk and core)

    A continuous policy has one learned log standard deviation per action component that does not depend on the observation.
    Results have the weights' type, whatever the networks compute in. Shapes: rows `[N, O]`, whose last columns are the mask if there is
    one, pixels `[N, P]` uint8, parameters `[N, D]`, values `[N]`, states `[…, S]`.
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
        images: Sequence[tuple[int, int, int]] = (),
        mask_size: int = 0,
        two_heads: bool = False,
    ) -> None:
        """`head_size` outputs come from the observation; `std_size` log standard deviations (0 for discrete) from nothing. With `two_heads`
        the critic also values intrinsic rewards.
        """
        super().__init__()
        self._autocast = autocast
        self._dtype = dtype
        self._images = tuple(images)
        self.mask_size = mask_size
        self._features = observation_size - mask_size
        name = config.encoder if config.encoder != "auto" else "nature" if images else "mlp"
        self.is_mlp = name == "mlp"
        """Whether all that the trunk sees are rows."""
        self.trunk = self._encoder(name, config, generator)
        self.critic_trunk = None if config.shared else self._encoder(name, config, generator)
        width = config.hidden[-1] if self.is_mlp else int(self.trunk.output_size)  # type: ignore[arg-type]
        self.core = self._memory(width, config, generator)
        self.critic_core = None if config.shared else self._memory(width, config, generator)
        width = width if self.core is None else self.core.output_size
        self.policy_head = Linear(width, head_size, dtype=dtype)
        self.value_head = Linear(width, 1, dtype=dtype)
        self.intrinsic_head = Linear(width, 1, dtype=dtype) if two_heads else None
        self.log_std = nn.Parameter(torch.full((std_size,), config.log_std, dtype=dtype)) if std_size else None
        gains: dict[nn.Module | None, float] = {
            self.policy_head: _POLICY_GAIN,
            self.value_head: _VALUE_GAIN,
            self.intrinsic_head: _VALUE_GAIN,
        }
        for layer in self.modules():
            if isinstance(layer, Linear):
                initialize(layer, gains.get(layer, TRUNK_GAIN) if config.orthogonal else None, generator)

    def _encoder(self, name: str, config: PolicyConfig, generator: torch.Generator) -> nn.Module:
        if name == "mlp":
            return mlp((self._features, *config.hidden), ACTIVATIONS[config.activation], self._dtype)
        with seeded(generator):
            return encoder_factory(name)(self._features, self._images, config).to(self._dtype)

    def _memory(self, width: int, config: PolicyConfig, generator: torch.Generator) -> Core | None:
        if config.core == "none":
            return None
        with seeded(generator):
            return core_factory(config.core)(width, config.core_size, config.core_layers).to(self._dtype)

    @property
    def state_size(self) -> int:
        """S: the policy's memory, then the critic's."""
        return sum(core.state_size for core in (self.core, self.critic_core) if core is not None)

    def forward(
        self,
        observations: Tensor,
        pixels: Tensor | None = None,
        states: Tensor | None = None,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Parameters and values of rows, which with memory are `[L n]`: step 0 of n sequences, step 1, …. With two heads values are `[N, 2]`:
        of the environment's rewards, and of intrinsic ones.

        Args:
            observations: `[N, O]`.
            pixels: `[N, P]`, if there are images.
            states: `[n, S]`, what is remembered before step 0.
            resets: `[L, n]` bool: before these it is forgotten.
        """
        hidden, critic, _ = self._hidden(observations, pixels, states, resets)
        with self._autocast():
            values = self._value(critic)
            if self.intrinsic_head is not None:
                values = torch.stack([values, self.intrinsic_head(critic).squeeze(-1).to(self._dtype)], 1)
            return self._head(hidden, observations), values

    def act(
        self, observations: Tensor, pixels: Tensor | None = None, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """One step: parameters, values, and the state after it. Values are None where the critic neither shares the trunk nor has a memory:
        `value` then gives those of all steps at once.
        """
        with self._autocast():
            if self.core is None and self.critic_trunk is not None:
                return self._head(self.trunk(*self._seen(observations, pixels)), observations), None, state
        hidden, critic, state = self._hidden(observations, pixels, state, None)
        with self._autocast():
            return self._head(hidden, observations), self._value(critic), state

    def value(self, observations: Tensor, pixels: Tensor | None = None) -> Tensor:
        """Values without the policy, where they share nothing; not with memory."""
        trunk = self.trunk if self.critic_trunk is None else self.critic_trunk
        with self._autocast():
            return self._value(trunk(*self._seen(observations, pixels)))

    def remember(self, observations: Tensor, pixels: Tensor | None, states: Tensor, resets: Tensor) -> Tensor:
        """`[n, S]`, the state after sequences as in `forward`."""
        state = self._hidden(observations, pixels, states, resets)[2]
        assert state is not None
        return state

    def parts(self) -> dict[str, dict[str, nn.Parameter]]:
        """Parameters, by name, by what trains them: `policy` (with a shared trunk, that too) and `value`."""
        named = dict(self.named_parameters())
        own = ("critic_trunk.", "critic_core.", "value_head.", "intrinsic_head.")
        value = {name: named[name] for name in named if name.startswith(own)}
        return {"policy": {name: named[name] for name in named if name not in value}, "value": value}

    def _seen(self, observations: Tensor, pixels: Tensor | None) -> tuple[object, ...]:
        """What an encoder takes."""
        features = observations[:, : self._features] if self.mask_size else observations
        if self.is_mlp:
            return (features,)
        sizes = [math.prod(shape) for shape in self._images]
        images = () if pixels is None else pixels.split(sizes, 1)
        return features, tuple(image.view(-1, *shape) for image, shape in zip(images, self._images, strict=True))

    def _hidden(
        self, observations: Tensor, pixels: Tensor | None, state: Tensor | None, resets: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What goes into the policy's head and into the critic's, and the state after. Without `resets`: of one step."""
        seen = self._seen(observations, pixels)
        with self._autocast():
            hidden = self.trunk(*seen)
            critic = hidden if self.critic_trunk is None else self.critic_trunk(*seen)
        if self.core is None:
            return hidden, critic, state
        assert state is not None
        own, its = state.split([self.core.state_size, state.shape[1] - self.core.state_size], 1)
        hidden, own = _recur(self.core, hidden.to(self._dtype), own, resets)
        if self.critic_core is None:
            return hidden, hidden, own
        critic, its = _recur(self.critic_core, critic.to(self._dtype), its, resets)
        return hidden, critic, torch.cat([own, its], 1)

    def _head(self, hidden: Tensor, observations: Tensor) -> Tensor:
        head: Tensor = self.policy_head(hidden).to(self._dtype)
        if self.mask_size:
            allowed = observations[:, self._features :] > 0
            logits, rest = head.split([self.mask_size, head.shape[1] - self.mask_size], 1)
            head = torch.cat([logits.masked_fill(~allowed, FORBIDDEN), rest], 1)
        return head if self.log_std is None else torch.cat([head, self.log_std.expand(*head.shape[:-1], -1)], -1)

    def _value(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.value_head(hidden).to(self._dtype)
        return values.squeeze(-1)


def _recur(core: Core, rows: Tensor, state: Tensor, resets: Tensor | None) -> tuple[Tensor, Tensor]:
    """Output and state after one step or, with `resets` `[L, n]`, after sequences."""
    if resets is None:
        return core.step(rows, state)
    outputs, state = core.sequence(rows.view(*resets.shape, rows.shape[1]), state, resets)
    return outputs.flatten(0, 1), state
