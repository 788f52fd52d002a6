"""The networks in NumPy, for what needs no gradient: for a few rows a call into PyTorch costs more than the arithmetic."""

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

__all__ = ["NumpyPolicy", "silent"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_Layer = tuple[NDArray[Any], NDArray[Any]]
"""Weights `[inputs, outputs]`, and bias `[outputs]` or `[rows, outputs]`."""

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


class NumpyPolicy:
    """Computes what a `Policy` without images computes on the CPU, in the weights' own precision; equal to rounding.

    Its arrays are views of the policy's parameters: whatever is trained or loaded in place, it follows.
    """

    def __init__(self, policy: Policy, activation: str) -> None:
        """`activation` is the one in `policy`. The parameters must have their final place in memory."""
        self._activate = _ACTIVATIONS[activation]
        self._mask_size = policy.mask_size
        self._trunk = _layers(policy.trunk)
        self._critic_trunk = self._trunk if policy.critic_trunk is None else _layers(policy.critic_trunk)
        self._cores = policy.core, policy.critic_core
        self._policy_head, self._value_head = _layer(policy.policy_head), _layer(policy.value_head)
        self.log_std = None if policy.log_std is None else policy.log_std.detach()
        """`[A]` for continuous actions."""
        self._dtype = policy.policy_head.weight.dtype

    def head(self, count: int) -> Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]:
        """A function from `[count, O]` to the policy's head `[count, H]`, which it writes into its second argument.

        It has the weights of now.
        """
        # a bias for every row: adding arrays of one shape costs a third of repeating one of them
        *trunk, last = [(weight, np.tile(bias, (count, 1))) for weight, bias in (*self._trunk, self._policy_head)]
        outputs = [self._output(layer, count) for layer in trunk]
        if not self._mask_size:
            return lambda rows, out: _affine(self._hidden(trunk, rows, outputs), last, out)
        return lambda rows, out: self._restrict(
            rows, _affine(self._hidden(trunk, self._features(rows), outputs), last, out)
        )

    def step(self, count: int) -> Callable[[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]], None]:
        """For a policy with memory, a function of rows `[count, O]` that moves the state `[count, S]` on in place, and writes the policy's head
        `[count, H]` and what the critic's head takes, `latents`.

        It has the weights of now.
        """
        core, critic_core = self._cores
        assert core is not None
        trunk, its_trunk = (
            [(weight, np.tile(bias, (count, 1))) for weight, bias in layers]
            for layers in (self._trunk, self._critic_trunk)
        )
        outputs, cut = [self._output(layer, count) for layer in trunk], core.state_size
        move = stepper(core, count)
        its_move = None if critic_core is None else stepper(critic_core, count)

        def step(rows: NDArray[Any], state: NDArray[Any], head: NDArray[Any], latent: NDArray[Any]) -> None:
            features = self._features(rows)
            output, state[:, :cut] = move(self._hidden(trunk, features, outputs), state[:, :cut])
            _affine(output, self._policy_head, head)
            if self._mask_size:
                self._restrict(rows, head)
            if its_move is not None:
                output, state[:, cut:] = its_move(self._hidden(its_trunk, features, outputs), state[:, cut:])
            latent[:] = output

        return step

    def latents(self, steps: int, count: int) -> NDArray[Any]:
        """`[steps, count, …]`, for `step` to write into."""
        return torch.empty(steps, count, len(self._value_head[0]), dtype=self._dtype).numpy()

    def judge(self, latents: NDArray[Any]) -> Tensor:
        """Values `[steps, count]` of what `step` wrote."""
        rows = latents.reshape(-1, latents.shape[-1])
        values = silent(_affine)(rows, self._value_head, self._output(self._value_head, len(rows)))
        return torch.from_numpy(values).view(latents.shape[:2])

    def heads(self, steps: int, count: int) -> NDArray[Any]:
        """`[steps, count, H]`, for `head` to write into."""
        return self._output(self._policy_head, steps, count)

    def parameters(self, head: NDArray[Any]) -> Tensor:
        """The policy's head `[N, H]` -> parameters of the action distribution `[N, P]`."""
        found = torch.from_numpy(head)
        return found if self.log_std is None else torch.cat([found, self.log_std.expand(len(found), -1)], -1)

    def forward(self, rows: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """`Policy.forward`, in fresh tensors."""
        head, values = self._output(self._policy_head, len(rows)), self._output(self._value_head, len(rows))
        silent(self._write)(
            self._features(rows),
            [(self._trunk, self._policy_head, head), (self._critic_trunk, self._value_head, values)],
        )
        if self._mask_size:
            self._restrict(rows, head)
        return self.parameters(head), torch.from_numpy(values).squeeze(-1)

    def value(self, rows: NDArray[Any]) -> Tensor:
        """`Policy.value`, in a fresh tensor."""
        values = self._output(self._value_head, len(rows))
        silent(self._write)(self._features(rows), [(self._critic_trunk, self._value_head, values)])
        return torch.from_numpy(values).squeeze(-1)

    def _features(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows without the mask."""
        return rows[:, : -self._mask_size] if self._mask_size else rows

    def _restrict(self, rows: NDArray[Any], head: NDArray[Any]) -> NDArray[Any]:
        np.copyto(head[:, : self._mask_size], FORBIDDEN, where=rows[:, -self._mask_size :] <= 0)
        return head

    def _write(self, rows: NDArray[Any], wanted: list[tuple[list[_Layer], _Layer, NDArray[Any]]]) -> None:
        """Fills each output from its trunk and its head."""
        outputs = [self._output(layer, min(_BLOCK, len(rows))) for layer in self._trunk]
        for start in range(0, len(rows), _BLOCK):
            block, known = rows[start : start + _BLOCK], None
            own = [out[: len(block)] for out in outputs]
            for trunk, head, result in wanted:
                if trunk is not known:  # a shared one has been computed
                    hidden, known = self._hidden(trunk, block, own), trunk
                _affine(hidden, head, result[start : start + _BLOCK])

    def _output(self, layer: _Layer, *rows: int) -> NDArray[Any]:
        """An empty array for what comes out of `layer`."""
        # torch aligns alike in every process: some BLAS kernels round differently on other alignments
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
