"""Memory of a policy: recurrent networks between its encoder and its heads.

A core's state is one flat row per environment, zeros where an episode begins. `step` is for acting, `sequence` for training: the same
numbers to rounding, for whole sequences in which episodes may begin anywhere.
"""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from lockstep.models.episode_boundaries import CLOSED, EpisodeBoundaries
from lockstep.models.scan import linear_recurrence

__all__ = ["Core", "Gru", "Lstm", "MinGru"]

_ONE_LAYER = (1, 0.0, False, False, False)
"""To PyTorch's kernels: layers, dropout, whether they drop anything, whether both ways in time, whether the batch comes before time."""


class Core(nn.Module):
    """What every core has. The first weights are drawn from PyTorch's global generator, in its default type; `to` gives another.

    Results have the state's type, whatever a context such as PyTorch's autocast makes of the products.
    """

    output_size: int
    """`H`, of what `step` and `sequence` give."""
    state_size: int
    """`S`."""

    @abstractmethod
    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Features `[B, I]` and state `[B, S]` -> output `[B, H]` and the state after it, `[B, S]`."""

    @abstractmethod
    def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        """Features `[L, N, I]`, state before them `[N, S]` -> outputs `[L, N, H]`, state after the last row `[N, S]`.

        Where `resets`, bool `[L, N]`, is set, an episode begins: before that row the state is zero.
        """


class _Gated(Core):
    """Layers of gates that see the layer below, or the features; a layer's state is its output, and what else it may keep."""

    gates: int
    """Blocks of `H` rows in a layer's weights."""
    kept = 1
    """Blocks of `H` numbers in a layer's state."""
    recurrent = True
    """Whether gates see the layer's last output too."""

    def __init__(self, input_size: int, size: int, layers: int) -> None:
        super().__init__()
        self.output_size, self.layers, self.state_size = size, layers, layers * self.kept * size
        rows = self.gates * size
        widths = [input_size, *[size] * layers]
        self.input_weights = nn.ParameterList(torch.empty(rows, inputs) for inputs, _ in pairwise(widths))
        self.state_weights = nn.ParameterList(torch.empty(rows, size) for _ in range(layers if self.recurrent else 0))
        self.biases = nn.ParameterList(torch.zeros(rows) for _ in range(layers))
        for weight in (*self.input_weights, *self.state_weights):
            for block in weight.detach().split(size):
                nn.init.orthogonal_(block)

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `Core.step`."""
        after = list[Tensor]()
        for layer, before in enumerate(state.split(self.kept * self.output_size, 1)):
            found = self._cell(layer, features, before)
            features = found[0]
            after += found
        return features, torch.cat(after, 1) if len(after) > 1 else features

    @abstractmethod
    def _cell(self, layer: int, features: Tensor, before: Tensor) -> Sequence[Tensor]:
        """The layer's input `[B, I]` and its state -> its output, and what else is in its new state."""


class _Sequential(_Gated):
    """Layers that PyTorch has a kernel for, which runs over the steps of whole sequences."""

    def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        """See `Core.sequence`."""
        rows, spacing, after = features, EpisodeBoundaries.of(resets, features.dtype), list[Tensor]()
        if spacing is not None:
            rows = spacing.spread(rows)
        state = torch.where(resets[0].unsqueeze(1), 0, state)
        for layer, before in enumerate(state.split(self.kept * self.output_size, 1)):
            marked = rows if spacing is None else torch.cat([rows, spacing.marks], 2)
            rows, *others = self._kernel(marked, before, self._weights(layer, spacing))
            after += [rows[-1] if spacing is None else spacing.last(rows), *others]
        return rows if spacing is None else spacing.gather(rows), torch.cat(after, 1)

    def _weights(self, layer: int, spacing: EpisodeBoundaries | None) -> list[Tensor]:
        """As the kernels want them. Only usual rows have a bias, where there are others."""
        inputs, states, bias = self.input_weights[layer], self.state_weights[layer], self.biases[layer]
        if spacing is None:
            return [inputs, states, bias, torch.zeros_like(bias)]
        return [torch.cat([inputs, torch.stack([bias, *self._closed(bias)], 1)], 1), states]

    @abstractmethod
    def _closed(self, bias: Tensor) -> tuple[Tensor, Tensor]:
        """What is added to the gates `[gates * H]` in a row that forgets, and in one that keeps the state."""

    @abstractmethod
    def _kernel(self, rows: Tensor, before: Tensor, weights: list[Tensor]) -> list[Tensor]:
        """Rows `[M, N, I]`, the layer's state -> its outputs `[M, N, H]`, and what else is in its state after them."""


class Lstm(_Sequential):
    """Long short-term memory (Hochreiter & Schmidhuber 1997), with a forget gate that begins open: its bias is 1 (Gers et al. 2000).

    A layer's state is its output and its cell.
    """

    gates, kept = 4, 2  # input, forget, cell, output

    def __init__(self, input_size: int, size: int, layers: int) -> None:
        super().__init__(input_size, size, layers)
        for bias in self.biases:
            bias.detach()[size : 2 * size] = 1

    def _cell(self, layer: int, features: Tensor, before: Tensor) -> Sequence[Tensor]:
        found: Sequence[Tensor] = torch.lstm_cell(
            features, before.split(self.output_size, 1), *self._weights(layer, None)
        )
        return found

    def _closed(self, bias: Tensor) -> tuple[Tensor, Tensor]:
        closed = bias.new_full((self.output_size,), CLOSED)
        rest = bias.new_zeros(2 * self.output_size)
        return torch.cat([closed, closed, rest]), torch.cat([closed, -closed, rest])

    def _kernel(self, rows: Tensor, before: Tensor, weights: list[Tensor]) -> list[Tensor]:
        state = [part.contiguous().unsqueeze(0) for part in before.split(self.output_size, 1)]
        outputs, _, cell = torch.lstm(rows, state, weights, len(weights) > 2, *_ONE_LAYER)
        return [outputs.to(before.dtype), cell[0].to(before.dtype)]


class Gru(_Sequential):
    """Gated recurrent unit (Cho et al. 2014), as PyTorch computes it: the reset gate acts behind the product with the last output."""

    gates = 3  # reset, update, new

    def _cell(self, layer: int, features: Tensor, before: Tensor) -> Sequence[Tensor]:
        return [torch.gru_cell(features, before, *self._weights(layer, None))]

    def _closed(self, bias: Tensor) -> tuple[Tensor, Tensor]:
        closed = bias.new_full((self.output_size,), CLOSED)
        rest = torch.zeros_like(closed)  # and so what is new is tanh(0), for nothing else comes in
        return torch.cat([closed, closed, rest]), torch.cat([closed, -closed, rest])

    def _kernel(self, rows: Tensor, before: Tensor, weights: list[Tensor]) -> list[Tensor]:
        outputs, _ = torch.gru(rows, before.contiguous().unsqueeze(0), weights, len(weights) > 2, *_ONE_LAYER)
        return [outputs.to(before.dtype)]


class MinGru(_Gated):
    """minGRU (Feng et al. 2024, arXiv:2410.01201): its gate sees no state, so that all steps of a sequence are computed at once."""

    gates, recurrent = 2, False  # update, new

    def _cell(self, layer: int, features: Tensor, before: Tensor) -> Sequence[Tensor]:
        update, new = self._rows(layer, features, before)
        return [torch.lerp(before, new, update)]

    def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        """See `Core.sequence`."""
        after, starts = [], resets.unsqueeze(2)
        for layer, before in enumerate(state.split(self.output_size, 1)):
            update, new = self._rows(layer, features, before)
            features = linear_recurrence((1 - update).masked_fill(starts, 0), update * new, before)
            after.append(features[-1])
        return features, torch.cat(after, 1)

    def _rows(self, layer: int, features: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Features `[..., I]` -> update and new `[..., H]`, in the state's type whatever the product is computed in."""
        rows = nn.functional.linear(features, self.input_weights[layer], self.biases[layer])
        update, new = rows.to(before.dtype).chunk(2, -1)
        return update.sigmoid(), new
