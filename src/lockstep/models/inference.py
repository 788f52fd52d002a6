"""The networks in NumPy, for what needs no gradient: for a few rows a call into PyTorch costs more than the arithmetic."""

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lockstep.models.policy import Policy

__all__ = ["Inference", "silent"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_Layer = tuple[NDArray[Any], NDArray[Any]]
"""Weights `[inputs, outputs]` and bias, `[outputs]` or `[count, outputs]`."""

_BLOCK = 1024
"""Rows that go through all layers together, so that what lies between two layers stays in the cache."""


def silent(function: _Function) -> _Function:
    """`function`, with NumPy saying nothing of what is not finite: that is found in the loss, on all ranks at once."""
    # NumPy's error state belongs to the context; to enter one that was made before costs a twentieth of `np.errstate`
    context = copy_context()
    context.run(np.seterr, all="ignore")
    return cast(_Function, partial(context.run, function))


def _tanh(rows: NDArray[Any]) -> None:
    np.tanh(rows, rows)


def _relu(rows: NDArray[Any]) -> None:
    np.maximum(rows, 0, out=rows)


def _elu(rows: NDArray[Any]) -> None:
    below = np.expm1(np.minimum(rows, 0))
    np.maximum(rows, 0, out=rows)
    rows += below


def _silu(rows: NDArray[Any]) -> None:
    rows /= 1 + np.exp(-rows)


_ACTIVATIONS: dict[str, Callable[[NDArray[Any]], None]] = {"tanh": _tanh, "relu": _relu, "elu": _elu, "silu": _silu}
"""Each in place."""


class Inference:
    """Computes what a `Policy` on the CPU computes, in the weights' own precision; equal to rounding.

    Its arrays are views of the policy's parameters: whatever is trained or loaded in place, it follows.
    """

    def __init__(self, policy: Policy, activation: str) -> None:
        """`activation` is the one in `policy`. The parameters must have their final place in memory."""
        self._activate = _ACTIVATIONS[activation]
        self._trunk = _layers(policy.trunk)
        self._critic_trunk = None if policy.critic_trunk is None else _layers(policy.critic_trunk)
        self._policy_head, self._value_head = _layer(policy.policy_head), _layer(policy.value_head)
        self.log_std: NDArray[Any] | None = None if policy.log_std is None else policy.log_std.detach().numpy()
        """`[A]` for continuous actions."""

    def head(self, count: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """A function from `[count, O]` to the policy's head `[count, H]`, which its next call overwrites. It has the weights of now."""
        # a bias for every row: adding arrays of one shape costs a third of repeating one of them
        *trunk, last = [(weight, np.tile(bias, (count, 1))) for weight, bias in (*self._trunk, self._policy_head)]
        outputs, head = self._outputs(count), _output(last, count)
        return lambda rows: _affine(self._hidden(trunk, rows, outputs), last, head)

    def judge(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """`[N, O]` -> the policy's head `[N, H]` and values `[N]`, in fresh arrays."""
        return silent(self._judge)(rows)

    def _judge(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        head, values = _output(self._policy_head, len(rows)), _output(self._value_head, len(rows))
        outputs = self._outputs(min(_BLOCK, len(rows)))
        for start in range(0, len(rows), _BLOCK):
            at = slice(start, start + _BLOCK)
            own = [out[: len(rows[at])] for out in outputs]
            hidden = self._hidden(self._trunk, rows[at], own)
            _affine(hidden, self._policy_head, head[at])
            if self._critic_trunk is not None:
                hidden = self._hidden(self._critic_trunk, rows[at], own)
            _affine(hidden, self._value_head, values[at])
        return head, values[:, 0]

    def _outputs(self, count: int) -> list[NDArray[Any]]:
        return [_output(layer, count) for layer in self._trunk]

    def _hidden(self, trunk: list[_Layer], rows: NDArray[Any], outputs: list[NDArray[Any]]) -> NDArray[Any]:
        for layer, out in zip(trunk, outputs, strict=True):
            rows = _affine(rows, layer, out)
            self._activate(rows)
        return rows


def _layers(trunk: nn.Sequential) -> list[_Layer]:
    return [_layer(module) for module in trunk if isinstance(module, nn.Linear)]


def _layer(linear: nn.Linear) -> _Layer:
    return linear.weight.detach().numpy().T, linear.bias.detach().numpy()


def _output(layer: _Layer, count: int) -> NDArray[Any]:
    weight, _ = layer
    return np.empty((count, weight.shape[1]), dtype=weight.dtype)


def _affine(rows: NDArray[Any], layer: _Layer, out: NDArray[Any]) -> NDArray[Any]:
    weight, bias = layer
    rows.dot(weight, out)  # half the cost of np.matmul for small matrices
    out += bias
    return out
