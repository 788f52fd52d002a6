"""Memory of a policy: recurrent networks between its encoder and its heads.

The state of a core is one flat row per environment, with zeros where an episode begins. `step` is for acting,
`sequence` for training on whole sequences in which episodes may begin anywhere. Both compute the same numbers up to
rounding.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn

from lockstep.models.episode_boundaries import CLOSED, EpisodeBoundaries
from lockstep.models.layers import orthogonal
from lockstep.models.scan import linear_recurrence
from lockstep.models.unrolled import linear_steps, unroll_gru, unroll_lstm

__all__ = ["BuiltInCore", "Core", "Gru", "Lstm", "MinGru"]


def _kernel_options(rows: Tensor) -> tuple[int, float, bool, bool, bool]:
    """Return the last arguments of `torch.lstm` and `torch.gru`: num_layers, dropout, train, bidirectional, batch_first.

    Without dropout, `train` does not affect results, but cuDNN computes gradients only with it.
    """
    return 1, 0.0, rows.is_cuda, False, False


class Core(nn.Module):
    """Interface of all cores.

    The initial weights are drawn from PyTorch's global generator, in PyTorch's default dtype; use `to` to convert them.
    Results have the dtype of the state, also when a context such as PyTorch's autocast computes products in another
    one.
    """

    output_size: int
    """Size `H` of the outputs of `step` and `sequence`."""
    state_size: int
    """Size `S` of the state."""

    @abstractmethod
    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the output `[B, H]` and the next state `[B, S]` from features `[B, I]` and state `[B, S]`."""

    @abstractmethod
    def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the outputs `[L, N, H]` of sequences, and the state after their last row `[N, S]`.

        `features` are `[L, N, I]`, and `state` `[N, S]` is the state before the first row. `resets` `[L, N]` bool is True where
        an episode begins; before that row the state is zero.
        """


class BuiltInCore(Core):
    """A core whose sequences can be traced."""

    @abstractmethod
    def unroll(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `sequence` by operations that do not depend on the values of `resets`, to results that are equal up to rounding.

        No gradient flows through the state after the last row.
        """


class _Gated(BuiltInCore):
    """Stacked gated layers. The state of a layer is its output, and further values if it has any (the cell of an LSTM)."""

    gates: int
    """Number of blocks of `H` rows in the weights of a layer."""
    state_blocks = 1
    """Number of blocks of `H` values in the state of a layer."""
    recurrent = True
    """If True, the previous output of the layer is an input of its gates as well."""

    def __init__(self, input_size: int, size: int, layers: int) -> None:
        super().__init__()
        self.output_size, self.layers, self.state_size = size, layers, layers * self.state_blocks * size
        rows = self.gates * size
        widths = [input_size, *[size] * layers]
        self.input_weights = nn.ParameterList(torch.empty(rows, inputs) for inputs, _ in pairwise(widths))
        self.state_weights = nn.ParameterList(torch.empty(rows, size) for _ in range(layers if self.recurrent else 0))
        self.biases = nn.ParameterList(torch.zeros(rows) for _ in range(layers))
        for weight in (*self.input_weights, *self.state_weights):
            for block in weight.detach().split(size):
                orthogonal(block)

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `Core.step`."""
        after = list[Tensor]()
        for layer, before in enumerate(state.split(self.state_blocks * self.output_size, 1)):
            layer_state = self._cell(layer, features, before)
            features = layer_state[0]
            after += layer_state
        return features, torch.cat(after, 1) if len(after) > 1 else features

    def unroll(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        """See `BuiltInCore.unroll`."""
        starts, after = resets.unsqueeze(2), list[Tensor]()
        for layer, before in enumerate(state.split(self.state_blocks * self.output_size, 1)):
            gates = nn.functional.linear(features, self.input_weights[layer], self.biases[layer])
            features, *others = self._unroll(layer, gates, starts, before.split(self.output_size, 1))
            after += [features[-1], *others]
        return features, torch.cat(after, 1).detach()

    @abstractmethod
    def _unroll(self, layer: int, gates: Tensor, starts: Tensor, before: Sequence[Tensor]) -> Sequence[Tensor]:
        """Compute the outputs `[L, N, H]` of one layer, then the blocks of the last state that are not the output, if any.

        `gates` `[L, N, gates * H]` are products of its inputs, starts are `[L, N, 1]`.
        """

    @abstractmethod
    def _cell(self, layer: int, features: Tensor, before: Tensor) -> Sequence[Tensor]:
        """Compute the next state of one layer from its input `[B, I]`: blocks `[B, H]`, of which the first is the output."""


class _Sequential(_Gated):
    """Gated layers for which PyTorch has a kernel that processes whole sequences."""

    def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        """See `Core.sequence`."""
        rows, boundaries, after = features, EpisodeBoundaries.from_resets(resets, features.dtype), list[Tensor]()
        if boundaries is not None:
            rows = boundaries.insert_marker_rows(rows)
        state = torch.where(resets[0].unsqueeze(1), 0, state)
        for layer, before in enumerate(state.split(self.state_blocks * self.output_size, 1)):
            marked = rows if boundaries is None else torch.cat([rows, boundaries.marks], 2)
            rows, *others = self._kernel(marked, before, self._weights(layer, boundaries))
            after += [rows[-1] if boundaries is None else boundaries.last_rows(rows), *others]
        return rows if boundaries is None else boundaries.remove_marker_rows(rows), torch.cat(after, 1)

    def _weights(self, layer: int, boundaries: EpisodeBoundaries | None) -> list[Tensor]:
        """Return the weights of a layer. With `boundaries`, the bias is an input column, which applies to ordinary rows only."""
        inputs, states, bias = self.input_weights[layer], self.state_weights[layer], self.biases[layer]
        if boundaries is None:
            return [inputs, states, bias, torch.zeros_like(bias)]
        return [torch.cat([inputs, torch.stack([bias, *self._mark_biases(bias)], 1)], 1), states]

    @abstractmethod
    def _mark_biases(self, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return the biases `[gates * H]` of a row that clears the state, and of a row that keeps the state."""

    @abstractmethod
    def _kernel(self, rows: Tensor, before: Tensor, weights: list[Tensor]) -> list[Tensor]:
        """Run a layer over the rows `[M, N, I]` of sequences. Returns the outputs `[M, N, H]`, then the blocks of the last
        state that are not the output, if any.
        """


class Lstm(_Sequential):
    """Long short-term memory (Hochreiter & Schmidhuber 1997). The initial bias of the forget gate is 1 (Gers et al. 2000)."""

    gates, state_blocks = 4, 2  # input, forget, cell, output

    def __init__(self, input_size: int, size: int, layers: int) -> None:
        super().__init__(input_size, size, layers)
        for bias in self.biases:
            bias.detach()[size : 2 * size] = 1

    def _cell(self, layer: int, features: Tensor, before: Tensor) -> Sequence[Tensor]:
        output_and_cell: Sequence[Tensor] = torch.lstm_cell(
            features, before.split(self.output_size, 1), *self._weights(layer, None)
        )
        return output_and_cell

    def _unroll(self, layer: int, gates: Tensor, starts: Tensor, before: Sequence[Tensor]) -> Sequence[Tensor]:
        return unroll_lstm(gates, self.state_weights[layer], starts, *before)

    def _mark_biases(self, bias: Tensor) -> tuple[Tensor, Tensor]:
        closed = bias.new_full((self.output_size,), CLOSED)
        rest = bias.new_zeros(2 * self.output_size)
        return torch.cat([closed, closed, rest]), torch.cat([closed, -closed, rest])

    def _kernel(self, rows: Tensor, before: Tensor, weights: list[Tensor]) -> list[Tensor]:
        state = [part.contiguous().unsqueeze(0) for part in before.split(self.output_size, 1)]
        if torch.is_autocast_enabled(rows.device.type) and rows.device.type == "cpu" and not _has_bfloat16_lstm():
            with torch.autocast("cpu", enabled=False):
                outputs, _, cell = torch.lstm(rows.float(), state, weights, len(weights) > 2, *_kernel_options(rows))
        else:
            outputs, _, cell = torch.lstm(rows, state, weights, len(weights) > 2, *_kernel_options(rows))
        return [outputs.to(before.dtype), cell[0].to(before.dtype)]


@cache
def _has_bfloat16_lstm() -> bool:
    """Return True if PyTorch's LSTM runs in bfloat16 on this CPU. oneDNN's does not on processors without AVX-512, and PyTorch has no fallback."""
    rows, state = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1)
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            torch.lstm(rows, [state, state], [torch.zeros(4, 1), torch.zeros(4, 1)], False, *_kernel_options(rows))
    except RuntimeError:
        return False
    return True


class Gru(_Sequential):
    """Gated recurrent unit (Cho et al. 2014), in the variant of PyTorch.

    The reset gate multiplies the product of the weights with the previous output, not the previous output itself.
    """

    gates = 3  # reset, update, new

    def _cell(self, layer: int, features: Tensor, before: Tensor) -> Sequence[Tensor]:
        return [torch.gru_cell(features, before, *self._weights(layer, None))]

    def _unroll(self, layer: int, gates: Tensor, starts: Tensor, before: Sequence[Tensor]) -> Sequence[Tensor]:
        return [unroll_gru(gates, self.state_weights[layer], starts, *before)]

    def _mark_biases(self, bias: Tensor) -> tuple[Tensor, Tensor]:
        closed = bias.new_full((self.output_size,), CLOSED)
        rest = torch.zeros_like(closed)  # the new value is tanh(0): such a row has no other input
        return torch.cat([closed, closed, rest]), torch.cat([closed, -closed, rest])

    def _kernel(self, rows: Tensor, before: Tensor, weights: list[Tensor]) -> list[Tensor]:
        outputs, _ = torch.gru(
            rows, before.contiguous().unsqueeze(0), weights, len(weights) > 2, *_kernel_options(rows)
        )
        return [outputs.to(before.dtype)]


class MinGru(_Gated):
    """minGRU (Feng et al. 2024, arXiv:2410.01201). Its gate ignores the state, so that whole sequences are computed at once."""

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

    def _unroll(self, layer: int, gates: Tensor, starts: Tensor, before: Sequence[Tensor]) -> Sequence[Tensor]:
        update, new = gates.chunk(2, -1)
        update = update.sigmoid()
        return [linear_steps((1 - update).masked_fill(starts, 0), update * new, *before)]

    def _rows(self, layer: int, features: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Compute update gate and new value, `[..., H]` in the dtype of the state, from features `[..., I]`."""
        rows = nn.functional.linear(features, self.input_weights[layer], self.biases[layer])
        update, new = rows.to(before.dtype).chunk(2, -1)
        return update.sigmoid(), new
