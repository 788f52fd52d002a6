"""Cores in NumPy, one step at a time: for a few rows a call into PyTorch costs more than the arithmetic."""

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
"""Features `[B, I]` and state `[B, S]` -> output `[B, H]` and the state after it, `[B, S]`, which the next call writes over; that call
may be given this very array as its state.
"""

_Layer = Callable[[_Array, _Array, _Array], None]
"""The layer's input, its state, and where its new state goes, which may be the same array."""


def stepper(core: Core, count: int) -> Stepper:
    """Computes what `core.step` does for `count` rows on the CPU, in the weights' own precision; equal to rounding.

    It has the weights of now. A core that isn't built in is stepped by PyTorch.
    """
    make = _LAYERS.get(type(core))
    if make is None:
        return _by_pytorch(core)
    assert isinstance(core, Lstm | Gru | MinGru)
    size, width = core.output_size, core.state_size // core.layers
    layers = [make(core, layer, count) for layer in range(core.layers)]
    after = _empty(core, count, core.state_size)
    pieces = [slice(start, start + width) for start in range(0, core.state_size, width)]
    parts = [(layer, at, after[:, at], after[:, at][:, :size]) for layer, at in zip(layers, pieces, strict=True)]

    def step(features: _Array, state: _Array) -> tuple[_Array, _Array]:
        for layer, at, written, output in parts:
            layer(features, state[:, at], written)
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
    # rows of everything: adding arrays of one shape costs a third of repeating one of them
    bias, gates, past = _rows(core.biases[layer], count), _empty(core, count, 4 * size), _empty(core, count, 4 * size)
    enter, keep, new, leave = np.split(gates, 4, 1)
    # the logistic function of x is (1 + tanh(x / 2)) / 2
    half, rest = np.full_like(gates, 0.5), np.full_like(gates, 0.5)
    half[:, 2 * size : 3 * size], rest[:, 2 * size : 3 * size] = 1, 0
    kept = _empty(core, count, size)

    def step(features: _Array, before: _Array, after: _Array) -> None:
        features.dot(inputs, gates)
        before[:, :size].dot(states, past)
        np.add(gates, past, gates)
        np.add(gates, bias, gates)
        np.multiply(gates, half, gates)
        np.tanh(gates, gates)
        np.multiply(gates, half, gates)
        np.add(gates, rest, gates)
        cell = after[:, size:]
        np.multiply(keep, before[:, size:], kept)
        np.multiply(enter, new, cell)
        np.add(cell, kept, cell)
        np.tanh(cell, kept)
        np.multiply(leave, kept, after[:, :size])

    return step


def _gru(core: Any, layer: int, count: int) -> _Layer:
    size = core.output_size
    inputs, states = _transposed(core.input_weights[layer]), _transposed(core.state_weights[layer])
    bias, gates, past = _rows(core.biases[layer], count), _empty(core, count, 3 * size), _empty(core, count, 3 * size)
    reset, update, new = np.split(gates, 3, 1)
    both, both_past, new_past = gates[:, : 2 * size], past[:, : 2 * size], past[:, 2 * size :]
    apart = _empty(core, count, size)

    def step(features: _Array, before: _Array, after: _Array) -> None:
        features.dot(inputs, gates)
        before.dot(states, past)
        np.add(gates, bias, gates)
        np.add(both, both_past, both)
        _logistic(both)
        np.multiply(new_past, reset, new_past)
        np.add(new, new_past, new)
        np.tanh(new, new)
        np.subtract(before, new, apart)
        np.multiply(apart, update, apart)
        np.add(new, apart, after)

    return step


def _mingru(core: Any, layer: int, count: int) -> _Layer:
    size, inputs = core.output_size, _transposed(core.input_weights[layer])
    bias, gates = _rows(core.biases[layer], count), _empty(core, count, 2 * size)
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
    """In place."""
    np.multiply(rows, 0.5, rows)
    np.tanh(rows, rows)
    np.multiply(rows, 0.5, rows)
    np.add(rows, 0.5, rows)


def _transposed(weight: nn.Parameter) -> _Array:
    return weight.detach().numpy().T


def _rows(bias: nn.Parameter, count: int) -> _Array:
    return np.tile(bias.detach().numpy(), (count, 1))


def _empty(core: Core, *shape: int) -> _Array:
    # torch aligns alike in every process: some BLAS kernels round differently on other alignments
    return torch.empty(shape, dtype=next(core.parameters()).dtype).numpy()
