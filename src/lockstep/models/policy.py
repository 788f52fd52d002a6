"""Policy and critic: encoder, core (memory) if any, and heads."""

import math
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from numbers import Integral
from typing import TypeVar

import torch
from torch import Tensor, nn

from lockstep.distributions.joint import Distribution
from lockstep.messages import one_line
from lockstep.models.cores import BuiltInCore, Core
from lockstep.models.layers import ACTIVATIONS, TRUNK_GAIN, Linear, initialize, mlp, seeded
from lockstep.models.registry import Kind, core_factory, encoder_factory, head_factory, is_registered
from lockstep.models.settings import PolicyConfig

__all__ = ["FORBIDDEN", "Autocast", "Policy"]

_Module = TypeVar("_Module", bound=nn.Module)

Autocast = Callable[[], AbstractContextManager[object]]
"""Function that creates the context in which networks compute: `nullcontext` or PyTorch's autocast."""

FORBIDDEN = -1e9
"""Logit of an option that the mask does not allow. Its probability is exactly 0; products with it stay finite."""

_POLICY_GAIN, _VALUE_GAIN = 0.01, 1.0
_CRITIC_MODULES = ("critic_trunk.", "critic_core.", "critic_head_layers.", "value_head.", "intrinsic_head.")


class Policy(nn.Module):
    """Networks that compute the parameters of the action distribution and the value of an observation.

        row, pixels -> trunk -> core (memory) -> head_layers -> policy_head
                    -> critic_trunk -> critic_core -> critic_head_layers -> value_head

    If shared, the critic has the policy's trunk and core, and head layers of its own.

    Some distributions have parameters that do not depend on the observation, `log_std`. Results have the dtype of the weights, also when the networks compute in another precision. Shapes:
    rows `[N, O]`, whose last columns are the action mask if there is one, pixels `[N, P]` uint8, parameters `[N, D]`,
    values `[N]`, states `[…, S]`.
    """

    def __init__(
        self,
        observation_size: int,
        distribution: Distribution,
        config: PolicyConfig,
        generator: torch.Generator,
        dtype: torch.dtype,
        autocast: Autocast = nullcontext,
        images: Sequence[tuple[int, int, int]] = (),
        mask_size: int = 0,
        two_heads: bool = False,
    ) -> None:
        """Create the networks and draw their initial weights from `generator`.

        The policy computes the parameters of `distribution`. With `two_heads` the critic has a second head
        for the values of intrinsic rewards.
        """
        super().__init__()
        self._autocast = autocast
        self._dtype = dtype
        self._images = tuple(images)
        self.mask_size = mask_size
        self.observation_size = observation_size
        self._feature_count = observation_size - mask_size
        name = config.encoder if config.encoder != "auto" else "nature" if images else "mlp"
        self.is_mlp = name == "mlp"
        """True if the trunk is an MLP, whose only input is rows."""
        if config.value_hidden is not None and not self.is_mlp:
            raise ValueError(
                f"policy.value_hidden is {list(config.value_hidden)}: encoder {name!r} has no hidden layers of its own for the critic"
            )
        self.trunk = self._make_encoder(name, config, config.hidden, generator)
        self.critic_trunk = None if config.shared else self._make_encoder(name, config, config.critic_hidden, generator)
        width, critic_width = self.encoder_widths(config)
        self.core = self._make_core(width, config, generator)
        self.critic_core = None if config.shared else self._make_core(critic_width, config, generator)
        if self.core is not None:
            width = critic_width = _output_size(self.core, f"policy.core is {config.core!r}")
        self.head_layers, width = self._make_head(width, config, generator)
        self.critic_head_layers, critic_width = self._make_head(critic_width, config, generator)
        self._head_includes_inputs = _uses_features(distribution, config, width)
        self.policy_head = Linear(width, len(distribution.initial_outputs), dtype=dtype)
        self.value_head = Linear(critic_width, 1, dtype=dtype)
        self.intrinsic_head = Linear(critic_width, 1, dtype=dtype) if two_heads else None
        log_std = distribution.initial_log_std
        self.log_std = nn.Parameter(torch.tensor(log_std, dtype=dtype)) if log_std else None
        gains: dict[nn.Module | None, float] = {
            self.policy_head: _POLICY_GAIN,
            self.value_head: _VALUE_GAIN,
            self.intrinsic_head: _VALUE_GAIN,
        }
        for layer in self.modules():
            if isinstance(layer, Linear):
                initialize(layer, gains.get(layer, TRUNK_GAIN) if config.orthogonal else None, generator)
        if any(distribution.initial_outputs):
            self.policy_head.bias.data += torch.tensor(distribution.initial_outputs, dtype=dtype)

    def encoder_widths(self, config: PolicyConfig) -> tuple[int, int]:
        """Return the output sizes of the trunks of policy and critic."""
        if self.is_mlp:
            features = self._feature_count
            return (features, *config.hidden)[-1], (features, *config.critic_hidden)[-1]
        width = _output_size(self.trunk, f"policy.encoder is {config.encoder!r}")
        return width, width

    def _make_encoder(
        self, name: str, config: PolicyConfig, hidden: Sequence[int], generator: torch.Generator
    ) -> nn.Module:
        if name == "mlp":
            return mlp((self._feature_count, *hidden), ACTIVATIONS[config.activation], self._dtype)
        make = partial(encoder_factory(name), self._feature_count, self._images, config)
        return self._make_part("encoder", name, generator, make)

    def _make_core(self, width: int, config: PolicyConfig, generator: torch.Generator) -> Core | None:
        if config.core == "none":
            return None
        make = partial(core_factory(config.core), width, config.core_size, config.core_layers)
        return self._make_part("core", config.core, generator, make)

    def _make_head(self, width: int, config: PolicyConfig, generator: torch.Generator) -> tuple[nn.Module, int]:
        """Return the layers of a head after `width` inputs, with the number of their outputs."""
        if config.head == "mlp":
            widths = width, *config.head_hidden
            return mlp(widths, ACTIVATIONS[config.activation], self._dtype), widths[-1]
        layers = self._make_part("head", config.head, generator, partial(head_factory(config.head), width, config))
        return layers, _output_size(layers, f"policy.head is {config.head!r}")

    def _make_part(self, kind: Kind, name: str, generator: torch.Generator, make: Callable[[], _Module]) -> _Module:
        """Create an encoder, a core or a head. Raises ValueError, with the stack trace as a note, if the code of a user fails."""
        try:
            with seeded(generator):
                return make().to(self._dtype)
        except Exception as error:
            # on the device meta, the code of a user fails if it reads a tensor
            if not is_registered(kind, name) or torch.empty(0).is_meta:
                raise
            failure = ValueError(f"policy.{kind} is {name!r}: {type(error).__name__}: {one_line(error)}")
            failure.add_note("".join(traceback.format_exception(error)).rstrip())
            raise failure from error

    @property
    def has_built_in_cores(self) -> bool:
        """True if the policy has no core that a user has registered."""
        return all(core is None or isinstance(core, BuiltInCore) for core in (self.core, self.critic_core))

    @property
    def state_size(self) -> int:
        """Size `S` of the state: that of the policy's core plus that of the critic's core."""
        return sum(core.state_size for core in (self.core, self.critic_core) if core is not None)

    def forward(
        self,
        observations: Tensor,
        pixels: Tensor | None = None,
        states: Tensor | None = None,
        resets: Tensor | None = None,
        unroll: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute the parameters `[N, D]` and the values `[N]` of rows `[N, O]` and, with images, pixels `[N, P]`.

        With memory, the N = L n rows are those of n sequences of length L: step 0 of all sequences, then step 1, and so
        on; `states` are `[n, S]`, before step 0, and `resets` `[L, n]` is True where the state is set to zero before the step.
        With two heads the values are `[N, 2]`: of the environment's rewards, and of intrinsic rewards. `unroll` runs built-in cores by
        operations that do not depend on the values of `resets`.
        """
        hidden, critic_hidden, _ = self._hidden(observations, pixels, states, resets, unroll)
        return self._outputs(hidden, critic_hidden, observations)

    def act(
        self, observations: Tensor, pixels: Tensor | None = None, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Compute the parameters, the values and the next state for one step.

        The values are None if the critic has its own trunk and there is no memory: `value` computes them for all steps.
        """
        with self._autocast():
            if self.core is None and self.critic_trunk is not None:
                hidden = self.trunk(*self._encoder_inputs(observations, pixels))
                return self._distribution_parameters(hidden, observations), None, state
        hidden, critic_hidden, state = self._hidden(observations, pixels, state, None)
        with self._autocast():
            return self._distribution_parameters(hidden, observations), self.value_of_hidden(critic_hidden), state

    def head(self, observations: Tensor, pixels: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Compute the output of the policy's head `[N, H]` for rows `[N, O]` and, with images, pixels `[N, P]`, for a policy without memory.

        The second result is the output `[N, …]` of the trunk, None if the critic has its own trunk.
        """
        hidden = self.trunk(*self._encoder_inputs(observations, pixels))
        return self._head(hidden, observations), hidden if self.critic_trunk is None else None

    def unrolled_step(
        self, observations: Tensor, state: Tensor, pixels: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the output of the policy's head `[N, H]`, that of the critic's core `[N, …]`, and the next state `[N, S]`.

        Runs built-in cores by operations that can be traced, as does `unrolled`.
        """
        never = torch.zeros(1, len(observations), dtype=torch.bool)
        hidden, critic_hidden, after = self._hidden(observations, pixels, state, never, unroll=True)
        assert after is not None
        return self._head(hidden, observations), critic_hidden, after

    def unrolled(
        self, observations: Tensor, states: Tensor, resets: Tensor, pixels: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the results of `forward` for sequences, and the states `[n, S]` after them, with unrolled cores."""
        hidden, critic_hidden, after = self._hidden(observations, pixels, states, resets, unroll=True)
        assert after is not None
        return *self._outputs(hidden, critic_hidden, observations), after

    def value(self, observations: Tensor, pixels: Tensor | None = None) -> Tensor:
        """Compute the values `[N]` alone, for a policy without memory."""
        trunk = self.trunk if self.critic_trunk is None else self.critic_trunk
        with self._autocast():
            return self.value_of_hidden(trunk(*self._encoder_inputs(observations, pixels)))

    def remember(self, observations: Tensor, pixels: Tensor | None, states: Tensor, resets: Tensor) -> Tensor:
        """Compute the states `[n, S]` after sequences, with the arguments of `forward`."""
        state = self._hidden(observations, pixels, states, resets)[2]
        assert state is not None
        return state

    def parameter_groups(self) -> dict[str, dict[str, nn.Parameter]]:
        """Return the parameter groups with their parameters, by name: `policy` (which includes a shared trunk) and `value`."""
        named = dict(self.named_parameters())
        value = {name: named[name] for name in named if name.startswith(_CRITIC_MODULES)}
        return {"policy": {name: named[name] for name in named if name not in value}, "value": value}

    def _encoder_inputs(self, observations: Tensor, pixels: Tensor | None) -> tuple[object, ...]:
        """Return the arguments of an encoder: features, and the tuple of images unless it is an MLP."""
        features = observations[:, : self._feature_count] if self.mask_size else observations
        if self.is_mlp:
            return (features,)
        sizes = [math.prod(shape) for shape in self._images]
        images = () if pixels is None else pixels.split(sizes, 1)
        return features, tuple(image.view(-1, *shape) for image, shape in zip(images, self._images, strict=True))

    def _hidden(
        self,
        observations: Tensor,
        pixels: Tensor | None,
        state: Tensor | None,
        resets: Tensor | None,
        unroll: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute the outputs of the trunks or, with memory, of the cores for policy and critic, and the next state.

        Without `resets` the rows are one step, otherwise sequences as in `forward`.
        """
        inputs = self._encoder_inputs(observations, pixels)
        with self._autocast():
            hidden = self.trunk(*inputs)
            critic_hidden = hidden if self.critic_trunk is None else self.critic_trunk(*inputs)
        if self.core is None:
            return hidden, critic_hidden, state
        assert state is not None
        actor_state, critic_state = state.split([self.core.state_size, state.shape[1] - self.core.state_size], 1)
        hidden, actor_state = _run_core(self.core, hidden.to(self._dtype), actor_state, resets, unroll)
        if self.critic_core is None:
            return hidden, hidden, actor_state
        critic_hidden = critic_hidden.to(self._dtype)
        critic_hidden, critic_state = _run_core(self.critic_core, critic_hidden, critic_state, resets, unroll)
        return hidden, critic_hidden, torch.cat([actor_state, critic_state], 1)

    def _outputs(self, hidden: Tensor, critic_hidden: Tensor, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the results of `forward` from the outputs of the trunks or cores."""
        with self._autocast():
            critic_hidden = self.critic_head_layers(critic_hidden)
            values = self._linear(self.value_head, critic_hidden)
            if self.intrinsic_head is not None:
                values = torch.stack([values, self._linear(self.intrinsic_head, critic_hidden)], 1)
            return self._distribution_parameters(hidden, observations), values

    def _distribution_parameters(self, hidden: Tensor, observations: Tensor) -> Tensor:
        return self.distribution_parameters(self._head(hidden, observations))

    def distribution_parameters(self, head: Tensor) -> Tensor:
        """Compute the parameters of the action distribution `[N, D]` from the output of the policy's head `[N, H]`."""
        return head if self.log_std is None else torch.cat([head, self.log_std.expand(*head.shape[:-1], -1)], -1)

    def _head(self, hidden: Tensor, observations: Tensor) -> Tensor:
        """Compute the output of the policy's head, without logits that the mask forbids, and with the inputs of its last layer if the distribution
        has features.
        """
        inputs: Tensor = self.head_layers(hidden)
        head: Tensor = self.policy_head(inputs).to(self._dtype)
        if self._head_includes_inputs:
            head = torch.cat([head, inputs.detach().to(self._dtype)], -1)
        if self.mask_size:
            allowed = observations[:, self._feature_count :] > 0
            logits, rest = head.split([self.mask_size, head.shape[1] - self.mask_size], 1)
            head = torch.cat([logits.masked_fill(~allowed, FORBIDDEN), rest], 1)
        return head

    def value_of_hidden(self, hidden: Tensor) -> Tensor:
        """Compute the values `[N]` from the output `[N, …]` of the critic's trunk or core."""
        return self._linear(self.value_head, self.critic_head_layers(hidden))

    def _linear(self, head: nn.Module, hidden: Tensor) -> Tensor:
        values: Tensor = head(hidden).squeeze(-1).to(self._dtype)
        return values


def _output_size(module: nn.Module, field: str) -> int:
    """Return the number of outputs of an encoder, a core or a head. Raises ValueError, which begins with `field`, if the module does not tell."""
    size = getattr(module, "output_size", None)
    if not isinstance(size, Integral):  # such as those of NumPy
        raise ValueError(
            f"{field}: {type(module).__name__} must have an attribute output_size, the number of its outputs"
        )
    return int(size)


def _uses_features(distribution: Distribution, config: PolicyConfig, width: int) -> bool:
    """Return True if the distribution has parameters that are the inputs of the policy's last layer. `width` is their number."""
    if distribution.features not in (0, width):
        needed = (
            "name a width" if config.head == "mlp" else f"end with {width}, the output_size of head {config.head!r}"
        )
        raise ValueError(
            f"policy.distribution is {config.distribution!r}: with images or a registered encoder, core or head, policy.head_hidden must {needed}"
        )
    return distribution.features > 0


def _run_core(core: Core, rows: Tensor, state: Tensor, resets: Tensor | None, unroll: bool) -> tuple[Tensor, Tensor]:
    """Compute the outputs and the last state of a core for one step or, with `resets` `[L, n]`, for sequences."""
    if resets is None:
        return core.step(rows, state)
    run = core.sequence
    if unroll:
        assert isinstance(core, BuiltInCore)
        run = core.unroll
    outputs, state = run(rows.view(*resets.shape, rows.shape[1]), state, resets)
    return outputs.flatten(0, 1), state
