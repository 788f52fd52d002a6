"""Memory of a policy: recurrent networks between its encoder and its heads.

A core's state is one flat row per environment, zeros where an episode begins. `step` is for acting, `sequence` for training: the same
numbers to rounding, for whole sequences in which episodes may begin anywhere.
"""

from abc import abstractmethod
from itertools import pairwise

import torch
from torch import Tensor, nn

from lockstep.models.packing import Packing
from lockstep.models.scan import linear_recurrence

__all__ = ["Core", "Gru", "Lstm", "MinGru"]


class Core(nn.Module):
    """What every core has. The first weights are drawn from PyTorch's global generator, in its default type; `to` gives another."""

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
    """Layers whose gates see the layer below, or the features, and maybe the layer's own last state."""

    gates: int
    """Blocks of `H` rows in a layer's weights."""
    recurrent: bool
    """Whether gates see the last state."""

    def __init__(self, input_size: int, size: int, layers: int, states: int = 1) -> None:
        super().__init__()
        self.output_size, self.layers, self.state_size = size, layers, layers * states * size
        rows = self.gates * size
        widths = [input_size, *[size] * layers]
        self.input_weights = nn.ParameterList(torch.empty(rows, inputs) for inputs, _ in pairwise(widths))
        self.state_weights = nn.ParameterList(torch.empty(rows, size) for _ in range(layers if self.recurrent else 0))
        self.biases = nn.ParameterList(torch.zeros(rows) for _ in range(layers))
        for weight in (*self.input_weights, *self.state_weights):
            for block in weight.detach().split(size):
                nn.init.orthogonal_(block)


class Lstm(_Gated):
    """Long short-term memory (Hochreiter & Schmidhuber 1997), with a forget gate that begins open: its bias is 1 (Gers et al. 2000).

    A state is, for each layer, its output and its cell.
    """

    gates, recurrent = 4, True  # input, forget, cell, output

    def __init__(self, input_size: int, size: int, layers: int) -> None:
        super().__init__(input_size, size, layers, states=2)
        for bias in self.biases:
            bias.detach()[size : 2 * size] = 1

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `Core.step`."""
        after: list[Tensor] = []
        parts = state.split(self.output_size, 1)
        for layer in range(self.layers):
            hidden, cell = parts[2 * layer : 2 * layer + 2]
            rows = torch.addmm(self.biases[layer], features, self.input_weights[layer].t())
            rows = torch.addmm(rows, hidden, self.state_weights[layer].t())
            enter, keep, new, leave = rows.split(self.output_size, 1)
            cell = torch.addcmul(keep.sigmoid() * cell, enter.sigmoid(), new.tanh())
            features = leave.sigmoid() * cell.tanh()
            after += [features, cell]
        return features, torch.cat(after, 1)

    def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        """See `Core.sequence`."""
        packing = Packing.of(resets)
        if packing is None:
            state = torch.where(resets[0].unsqueeze(1), 0, state)
            return self._run(features, None, state)
        outputs, after = self._run(packing.pack(features), packing.batch_sizes, packing.begin(state))
        return packing.unpack(outputs, resets), packing.end(after)

    def _run(self, rows: Tensor, batch_sizes: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        """Sequences `[L, K, I]` or packed rows `[R, I]` with their batch sizes, and state `[K, S]` -> outputs, state."""
        parts = state.unflatten(1, (self.layers, 2, self.output_size)).permute(2, 1, 0, 3).contiguous()
        weights = _weights(self)
        shape = (True, self.layers, 0.0, False, False)  # with biases, no dropout, not training, one direction
        outputs, hidden, cell = (
            torch.lstm(rows, parts.unbind(), weights, *shape, False)
            if batch_sizes is None
            else torch.lstm(rows, batch_sizes, parts.unbind(), weights, *shape)
        )
        return outputs, torch.stack([hidden, cell]).permute(2, 1, 0, 3).flatten(1)


class Gru(_Gated):
    """Gated recurrent unit (Cho et al. 2014), as PyTorch computes it: the reset gate acts behind the product with the last state.

    A state is the output of each layer.
    """

    gates, recurrent = 3, True  # reset, update, new

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `Core.step`."""
        after: list[Tensor] = []
        for layer, hidden in enumerate(state.split(self.output_size, 1)):
            rows = torch.addmm(self.biases[layer], features, self.input_weights[layer].t())
            past = hidden @ self.state_weights[layer].t()
            size = 2 * self.output_size
            reset, update = (rows[:, :size] + past[:, :size]).sigmoid().chunk(2, 1)
            new = torch.addcmul(rows[:, size:], reset, past[:, size:]).tanh()
            features = torch.lerp(new, hidden, update)
            after.append(features)
        return features, torch.cat(after, 1)

    def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        """See `Core.sequence`."""
        packing = Packing.of(resets)
        if packing is None:
            state = torch.where(resets[0].unsqueeze(1), 0, state)
            return self._run(features, None, state)
        outputs, after = self._run(packing.pack(features), packing.batch_sizes, packing.begin(state))
        return packing.unpack(outputs, resets), packing.end(after)

    def _run(self, rows: Tensor, batch_sizes: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        """Sequences `[L, K, I]` or packed rows `[R, I]` with their batch sizes, and state `[K, S]` -> outputs, state."""
        hidden = state.unflatten(1, (self.layers, self.output_size)).transpose(0, 1).contiguous()
        weights = _weights(self)
        shape = (True, self.layers, 0.0, False, False)  # with biases, no dropout, not training, one direction
        outputs, hidden = (
            torch.gru(rows, hidden, weights, *shape, False)
            if batch_sizes is None
            else torch.gru(rows, batch_sizes, hidden, weights, *shape)
        )
        return outputs, hidden.transpose(0, 1).flatten(1)


class MinGru(_Gated):
    """minGRU (Feng et al. 2024, arXiv:2410.01201): its gate sees no state, so that all steps of a sequence are computed at once.

    A state is the output of each layer.
    """

    gates, recurrent = 2, False  # update, new

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `Core.step`."""
        after: list[Tensor] = []
        for layer, hidden in enumerate(state.split(self.output_size, 1)):
            rows = torch.addmm(self.biases[layer], features, self.input_weights[layer].t())
            update, new = rows.chunk(2, 1)
            features = torch.lerp(hidden, new, update.sigmoid())
            after.append(features)
        return features, torch.cat(after, 1)

    def sequence(self, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        """See `Core.sequence`."""
        after: list[Tensor] = []
        starts = resets.unsqueeze(2)
        for layer, hidden in enumerate(state.split(self.output_size, 1)):
            rows = nn.functional.linear(features, self.input_weights[layer], self.biases[layer])
            update, new = rows.chunk(2, 2)
            update = update.sigmoid()
            features = linear_recurrence((1 - update).masked_fill(starts, 0), update * new, hidden)
            after.append(features[-1])
        return features, torch.cat(after, 1)


def _weights(core: _Gated) -> list[Tensor]:
    """As PyTorch's kernels want them. Their second bias adds nothing to what the first can do, save in a GRU's new gate."""
    layers = zip(core.input_weights, core.state_weights, core.biases, strict=True)
    return [weight for inputs, states, bias in layers for weight in (inputs, states, bias, torch.zeros_like(bias))]
