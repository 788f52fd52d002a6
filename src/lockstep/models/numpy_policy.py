"""Policy networks in NumPy, without gradients. For a few rows a call into PyTorch costs more than the arithmetic."""

import math
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep.models.numpy_cores import stepper
from lockstep.models.policy import FORBIDDEN, Policy

__all__ = ["ArrayTransform", "Head", "NumpyPolicy", "Step", "identity", "without_warnings"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_Layer = tuple[NDArray[Any], NDArray[Any]]
"""Weights `[inputs, outputs]` and bias, `[outputs]` or `[rows, outputs]`, of a linear layer."""

_Target = tuple[list[_Layer], list[_Layer], _Layer, NDArray[Any]]
"""Trunk, hidden layers of the head, head, and the array for its outputs."""

_BLOCK = 1024
"""Number of rows that pass through all layers together, so that the outputs of hidden layers stay in the cache."""


ArrayTransform = Callable[[NDArray[Any]], NDArray[Any]]
"""A function of arrays of one shape. The next call may overwrite its result."""

Head = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
"""Function from observations `[B, O]` to the output of the policy's head `[B, H]`, its second argument."""

Step = Callable[[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]], None]
"""Function that steps a policy with memory. Its arguments are observations `[B, O]`, the state `[B, S]`, which it updates in place, and two
arrays that it writes: the output of the policy's head `[B, H]`, and the output of the critic's core, a row of `latents`."""


def identity(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the array unchanged."""
    return rows


def without_warnings(function: _Function) -> _Function:
    """Return `function` without NumPy's warnings: the loss finds values that are not finite, on all ranks at once."""
    # NumPy's error state belongs to the context; entering an existing context costs a twentieth of `np.errstate`
    context = copy_context()
    context.run(np.seterr, all="ignore")
    return cast(_Function, partial(context.run, function))


def _elu(rows: NDArray[Any]) -> None:
    below = np.expm1(np.minimum(rows, 0))
    np.maximum(rows, 0, out=rows)
    rows += below


def _gelu(rows: NDArray[Any]) -> None:
    inner = rows * rows * rows
    inner *= 0.044715
    inner += rows
    inner *= math.sqrt(2 / math.pi)
    np.tanh(inner, inner)
    inner += 1
    inner *= 0.5
    rows *= inner


_ACTIVATIONS: dict[str, Callable[[NDArray[Any]], object]] = {
    "tanh": lambda rows: np.tanh(rows, rows),
    "relu": lambda rows: np.maximum(rows, 0, out=rows),
    "elu": _elu,
    "gelu": _gelu,
    "silu": lambda rows: np.divide(rows, 1 + np.exp(-rows), out=rows),
}
"""Activations by name; each works in place."""


class NumpyPolicy:
    """NumPy implementation of a `Policy` without images on the CPU, in the precision of the weights.

    Its results equal those of the `Policy` up to rounding. Its arrays are views of the policy's parameters, so that it
    uses weights that are trained or loaded in place.
    """

    def __init__(self, policy: Policy, activation: str) -> None:
        """Create views of the parameters of `policy`, which must be at their final address, with the named activation."""
        self._activate = _ACTIVATIONS[activation]
        self._mask_size = policy.mask_size
        self._trunk = _layers(policy.trunk)
        self._critic_trunk = self._trunk if policy.critic_trunk is None else _layers(policy.critic_trunk)
        self._head_layers, self._critic_head_layers = _layers(policy.head_layers), _layers(policy.critic_head_layers)
        self._cores = policy.core, policy.critic_core
        self._policy_head, self._value_head = _layer(policy.policy_head), _layer(policy.value_head)
        self.log_std = None if policy.log_std is None else policy.log_std.detach()
        """Parameters of the action distribution that do not depend on the observation; None without them."""
        self._dtype = policy.policy_head.weight.dtype

    def head(self, count: int, normalize: ArrayTransform = identity) -> Head:
        """Return a function of `count` observations, which `normalize` normalizes.

        It uses the current weights: create another one after the weights have changed.
        """
        # the bias is repeated for every row: adding arrays of equal shape costs a third of broadcasting one of them
        layers = *self._trunk, *self._head_layers, self._policy_head
        *trunk, last = [(weight, np.tile(bias, (count, 1))) for weight, bias in layers]
        outputs = [self._output(layer, count) for layer in trunk]
        if not self._mask_size:
            return lambda rows, out: _affine(self._hidden(trunk, normalize(rows), outputs), last, out)

        def masked(rows: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
            rows = normalize(rows)
            return self._mask_logits(rows, _affine(self._hidden(trunk, self._features(rows), outputs), last, out))

        return masked

    def step(self, count: int, normalize: ArrayTransform = identity) -> Step:
        """Return a function of `count` observations, which `normalize` normalizes, for a policy with memory.

        It uses the current weights: create another one after the weights have changed.
        """
        core, critic_core = self._cores
        assert core is not None
        trunk, critic_trunk, head_layers = (
            [(weight, np.tile(bias, (count, 1))) for weight, bias in layers]
            for layers in (self._trunk, self._critic_trunk, self._head_layers)
        )
        outputs, critic_outputs, head_outputs = (
            [self._output(layer, count) for layer in layers] for layers in (trunk, critic_trunk, head_layers)
        )
        actor_size = core.state_size
        step_core = stepper(core, count)
        step_critic_core = None if critic_core is None else stepper(critic_core, count)

        def step(rows: NDArray[Any], state: NDArray[Any], head: NDArray[Any], latent: NDArray[Any]) -> None:
            rows = normalize(rows)
            features = self._features(rows)
            output, state[:, :actor_size] = step_core(self._hidden(trunk, features, outputs), state[:, :actor_size])
            _affine(self._hidden(head_layers, output, head_outputs), self._policy_head, head)
            if self._mask_size:
                self._mask_logits(rows, head)
            if step_critic_core is not None:
                hidden = self._hidden(critic_trunk, features, critic_outputs)
                output, state[:, actor_size:] = step_critic_core(hidden, state[:, actor_size:])
            latent[:] = output

        return step

    def latents(self, steps: int, count: int) -> NDArray[Any]:
        """Allocate an array `[steps, count, …]` for the outputs of the critic's core that `step` writes."""
        core, critic_core = self._cores
        assert core is not None
        return torch.empty(steps, count, (critic_core or core).output_size, dtype=self._dtype).numpy()

    def values_of_latents(self, latents: NDArray[Any]) -> Tensor:
        """Compute the values `[steps, count]` from the `latents` that `step` wrote."""
        rows = latents.reshape(-1, latents.shape[-1])
        outputs = [self._output(layer, len(rows)) for layer in self._critic_head_layers]
        hidden = without_warnings(self._hidden)(self._critic_head_layers, rows, outputs)
        values = without_warnings(_affine)(hidden, self._value_head, self._output(self._value_head, len(rows)))
        return torch.from_numpy(values).view(latents.shape[:2])

    def heads(self, steps: int, count: int) -> NDArray[Any]:
        """Allocate an array `[steps, count, H]` for the outputs of the policy's head that `head` writes."""
        return self._output(self._policy_head, steps, count)

    def parameters(self, head: NDArray[Any]) -> Tensor:
        """Return the parameters of the action distribution `[N, P]` for outputs of the policy's head `[N, H]`."""
        outputs = torch.from_numpy(head)
        return outputs if self.log_std is None else torch.cat([outputs, self.log_std.expand(len(outputs), -1)], -1)

    def forward(self, rows: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """Compute `Policy.forward`: parameters `[N, P]` and values `[N]`, in new tensors."""
        head, values = self._output(self._policy_head, len(rows)), self._output(self._value_head, len(rows))
        without_warnings(self._write)(
            self._features(rows),
            [
                (self._trunk, self._head_layers, self._policy_head, head),
                (self._critic_trunk, self._critic_head_layers, self._value_head, values),
            ],
        )
        if self._mask_size:
            self._mask_logits(rows, head)
        return self.parameters(head), torch.from_numpy(values).squeeze(-1)

    def value(self, rows: NDArray[Any]) -> Tensor:
        """Compute `Policy.value`: values `[N]`, in a new tensor."""
        values = self._output(self._value_head, len(rows))
        targets = [(self._critic_trunk, self._critic_head_layers, self._value_head, values)]
        without_warnings(self._write)(self._features(rows), targets)
        return torch.from_numpy(values).squeeze(-1)

    def _features(self, rows: NDArray[Any]) -> NDArray[Any]:
        return rows[:, : -self._mask_size] if self._mask_size else rows

    def _mask_logits(self, rows: NDArray[Any], head: NDArray[Any]) -> NDArray[Any]:
        """Set the logits of options that the mask does not allow to `FORBIDDEN`, in place."""
        np.copyto(head[:, : self._mask_size], FORBIDDEN, where=rows[:, -self._mask_size :] <= 0)
        return head

    def _write(self, rows: NDArray[Any], targets: list[_Target]) -> None:
        """Compute the outputs of heads."""
        count = min(_BLOCK, len(rows))
        outputs = {
            id(layers): [self._output(layer, count) for layer in layers]
            for trunk, head_layers, _, _ in targets
            for layers in (trunk, head_layers)
        }
        for start in range(0, len(rows), _BLOCK):
            block, last_trunk = rows[start : start + _BLOCK], None
            for trunk, head_layers, head, result in targets:
                block_outputs = {key: [out[: len(block)] for out in arrays] for key, arrays in outputs.items()}
                if trunk is not last_trunk:  # a shared trunk is computed once
                    hidden, last_trunk = self._hidden(trunk, block, block_outputs[id(trunk)]), trunk
                latent = self._hidden(head_layers, hidden, block_outputs[id(head_layers)])
                _affine(latent, head, result[start : start + _BLOCK])

    def _output(self, layer: _Layer, *rows: int) -> NDArray[Any]:
        # torch aligns memory the same way in every process: some BLAS kernels round differently on other alignments
        return torch.empty(*rows, layer[0].shape[1], dtype=self._dtype).numpy()

    def _hidden(self, trunk: list[_Layer], rows: NDArray[Any], outputs: list[NDArray[Any]]) -> NDArray[Any]:
        for layer, out in zip(trunk, outputs, strict=True):
            rows = _affine(rows, layer, out)
            self._activate(rows)
        return rows


def _layers(trunk: nn.Module) -> list[_Layer]:
    return [_layer(module) for module in trunk.children() if isinstance(module, nn.Linear)]


def _layer(linear: nn.Linear) -> _Layer:
    return linear.weight.detach().numpy().T, linear.bias.detach().numpy()


def _affine(rows: NDArray[Any], layer: _Layer, out: NDArray[Any]) -> NDArray[Any]:
    weight, bias = layer
    rows.dot(weight, out)  # half the cost of np.matmul for small matrices
    out += bias
    return out
