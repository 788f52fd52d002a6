"""Cores in NumPy, one step at a time. For a few rows a call into PyTorch costs more than the arithmetic."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lockstep.models.cores import Core, Gru, Lstm, MinGru

__all__ = ["Stepper", "stepper"]

_Array = NDArray[Any]

Stepper = Callable[[_Array, _Array], tuple[_Array, _Array]]
"""Function from features `[B, I]` and state `[B, S]` to the output `[B, H]` and the next state `[B, S]`.

The next call overwrites the returned state. The returned state may be passed to the next call as its state.
"""

_Layer = Callable[[_Array, _Array, _Array], None]
"""Function of the input of a layer, its state, and the array for its next state, possibly the same array."""


def stepper(core: Core, count: int) -> Stepper:
    """Create a function that computes `core.step` for `count` rows on the CPU, in the precision of the weights.

    Its results equal those of `core.step` up to rounding. It uses the current weights: create another one after the
    weights have changed. A core that is not built in is stepped by PyTorch.
    """
    make = _LAYERS.get(type(core))
    if make is None:
        return _by_pytorch(core)
    assert isinstance(core, Lstm | Gru | MinGru)
    size, width = core.output_size, core.state_size // core.layers
    layers = [make(core, layer, count) for layer in range(core.layers)]
    after = _empty(core, count, core.state_size)
    slices = [slice(start, start + width) for start in range(0, core.state_size, width)]
    parts = [
        (layer, columns, after[:, columns], after[:, columns][:, :size])
        for layer, columns in zip(layers, slices, strict=True)
    ]

    def step(features: _Array, state: _Array) -> tuple[_Array, _Array]:
        for layer, columns, layer_after, output in parts:
            layer(features, state[:, columns], layer_after)
            features = output
        return features, after

    return step


def _by_pytorch(core: Core) -> Stepper:
    @torch.no_grad()
    def step(features: _Array, state: _Array) -> tuple[_Array, _Array]:
        output, after = core.step(torch.from_numpy(features), torch.from_numpy(state))
        return output.numpy(), after.numpy()

    return step


def _lstm(core: Any, layer: int, count: int) -> _Layer:
    size = core.output_size
    inputs, states = _transposed(core.input_weights[layer]), _transposed(core.state_weights[layer])
    # the bias is repeated for every row: adding arrays of equal shape costs a third of broadcasting one of them
    bias = _repeated(core.biases[layer], count)
    gates, from_state = _empty(core, count, 4 * size), _empty(core, count, 4 * size)
    input_gate, forget_gate, new, output_gate = np.split(gates, 4, 1)
    # the logistic function of x is (1 + tanh(x / 2)) / 2
    scale, offset = np.full_like(gates, 0.5), np.full_like(gates, 0.5)
    scale[:, 2 * size : 3 * size], offset[:, 2 * size : 3 * size] = 1, 0
    scratch = _empty(core, count, size)

    def step(features: _Array, before: _Array, after: _Array) -> None:
        features.dot(inputs, gates)
        before[:, :size].dot(states, from_state)
        np.add(gates, from_state, gates)
        np.add(gates, bias, gates)
        np.multiply(gates, scale, gates)
        np.tanh(gates, gates)
        np.multiply(gates, scale, gates)
        np.add(gates, offset, gates)
        cell = after[:, size:]
        np.multiply(forget_gate, before[:, size:], scratch)
        np.multiply(input_gate, new, cell)
        np.add(cell, scratch, cell)
        np.tanh(cell, scratch)
        np.multiply(output_gate, scratch, after[:, :size])

    return step


def _gru(core: Any, layer: int, count: int) -> _Layer:
    size = core.output_size
    inputs, states = _transposed(core.input_weights[layer]), _transposed(core.state_weights[layer])
    bias = _repeated(core.biases[layer], count)
    gates, from_state = _empty(core, count, 3 * size), _empty(core, count, 3 * size)
    reset, update, new = np.split(gates, 3, 1)
    both, both_from_state, new_from_state = gates[:, : 2 * size], from_state[:, : 2 * size], from_state[:, 2 * size :]
    difference = _empty(core, count, size)

    def step(features: _Array, before: _Array, after: _Array) -> None:
        features.dot(inputs, gates)
        before.dot(states, from_state)
        np.add(gates, bias, gates)
        np.add(both, both_from_state, both)
        _logistic(both)
        np.multiply(new_from_state, reset, new_from_state)
        np.add(new, new_from_state, new)
        np.tanh(new, new)
        np.subtract(before, new, difference)
        np.multiply(difference, update, difference)
        np.add(new, difference, after)

    return step


def _mingru(core: Any, layer: int, count: int) -> _Layer:
    size, inputs = core.output_size, _transposed(core.input_weights[layer])
    bias, gates = _repeated(core.biases[layer], count), _empty(core, count, 2 * size)
    update, new = np.split(gates, 2, 1)

    def step(features: _Array, before: _Array, after: _Array) -> None:
        features.dot(inputs, gates)
        np.add(gates, bias, gates)
        _logistic(update)
        np.subtract(new, before, new)
        np.multiply(new, update, new)
        np.add(before, new, after)

    return step


_LAYERS: dict[type[Core], Callable[[Any, int, int], _Layer]] = {Lstm: _lstm, Gru: _gru, MinGru: _mingru}


def _logistic(rows: _Array) -> None:
    """Apply the logistic function in place."""
    np.multiply(rows, 0.5, rows)
    np.tanh(rows, rows)
    np.multiply(rows, 0.5, rows)
    np.add(rows, 0.5, rows)


def _transposed(weight: nn.Parameter) -> _Array:
    return weight.detach().numpy().T


def _repeated(bias: nn.Parameter, count: int) -> _Array:
    return np.tile(bias.detach().numpy(), (count, 1))


def _empty(core: Core, *shape: int) -> _Array:
    # torch aligns memory the same way in every process: some BLAS kernels round differently on other alignments
    return torch.empty(shape, dtype=next(core.parameters()).dtype).numpy()
