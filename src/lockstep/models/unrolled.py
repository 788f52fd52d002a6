"""Recurrent layers over whole sequences, step by step, with their gradients.

Their operations do not depend on where episodes begin, so that they can be traced; PyTorch's own kernels need `EpisodeBoundaries`.
The gradient of the weights is one product over all steps (Appleyard et al. 2016, arXiv:1604.01946), where differentiating step by
step would add up one product per step.

Arguments and results, for N sequences of length L:

    gates    `[L, N, G * H]`, products of the inputs of the layer with its weights, plus the bias
    weight   `[G * H, H]`, weights of the previous output
    starts   `[L, N, 1]` bool, True where an episode begins: the state before that step is zero
    output, cell   `[N, H]`, the state before the first step
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["linear_steps", "unroll_gru", "unroll_lstm"]


def unroll_lstm(gates: Tensor, weight: Tensor, starts: Tensor, output: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Run an LSTM layer. Returns its outputs `[L, N, H]` and the last cell `[N, H]`, which has no gradient."""
    results: tuple[Tensor, Tensor] = _Lstm.apply(gates, weight, starts, output, cell)  # type: ignore[no-untyped-call]
    return results


def unroll_gru(gates: Tensor, weight: Tensor, starts: Tensor, output: Tensor) -> Tensor:
    """Run a GRU layer. Returns its outputs `[L, N, H]`."""
    outputs: Tensor = _Gru.apply(gates, weight, starts, output)  # type: ignore[no-untyped-call]
    return outputs


def linear_steps(decay: Tensor, added: Tensor, state: Tensor) -> Tensor:
    """Compute `h[t] = decay[t] * h[t - 1] + added[t]`, `[L, ...]`, with `h[-1] = state`, `[...]`, as `linear_recurrence`."""
    states: Tensor = _Linear.apply(decay, added, state)  # type: ignore[no-untyped-call]
    return states


class _Lstm(torch.autograd.Function):
    """i, f, o = sigmoid, g = tanh of the gates; c' = f c + i g; h' = o tanh(c')."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, weight: Tensor, starts: Tensor, output: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        outputs, ctx.steps, transposed = [], [], weight.t()
        for step_gates, start in zip(gates.unbind(), starts.unbind(), strict=True):
            before, cell = (state.masked_fill(start, 0) for state in (output, cell))
            i, f, g, o = torch.addmm(step_gates, before, transposed).chunk(4, 1)
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
            new_cell = i * g + f * cell
            squashed = new_cell.tanh()
            output = o * squashed
            ctx.steps.append((before, cell, i, f, g, o, squashed))
            outputs.append(output)
            cell = new_cell
        ctx.save_for_backward(weight, starts)
        ctx.mark_non_differentiable(cell)
        return torch.stack(outputs), cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        weight, starts = ctx.saved_tensors
        into_gates, d_output, d_cell = [], None, None
        steps = zip(ctx.steps, gradient.unbind(), starts.unbind(), strict=True)
        for (_, cell, i, f, g, o, squashed), d_step, start in reversed([*steps]):
            d_output = d_step if d_output is None else d_step + d_output
            through_output = d_output * o * (1 - squashed * squashed)
            d_cell = through_output if d_cell is None else d_cell + through_output
            d_i, d_f = d_cell * g * i * (1 - i), d_cell * cell * f * (1 - f)
            d_g, d_o = d_cell * i * (1 - g * g), d_output * squashed * o * (1 - o)
            into_gates.append(torch.cat([d_i, d_f, d_g, d_o], 1))
            d_output = torch.mm(into_gates[-1], weight).masked_fill(start, 0)
            d_cell = (d_cell * f).masked_fill(start, 0)
        d_gates = torch.stack(into_gates[::-1])
        return d_gates, _weight_gradient(d_gates, [step[0] for step in ctx.steps]), None, d_output, d_cell


class _Gru(torch.autograd.Function):
    """r, z = sigmoid of the gates; n = tanh(x + r w), the sum of the inputs' and of the output's product; h' = n + z (h - n)."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, starts: Tensor, output: Tensor) -> Tensor:
        outputs, ctx.steps, transposed = [], [], weight.t()
        for step_gates, start in zip(gates.unbind(), starts.unbind(), strict=True):
            before = output.masked_fill(start, 0)
            reset_input, update_input, new_input = step_gates.chunk(3, 1)
            r, z, w = torch.mm(before, transposed).chunk(3, 1)
            r, z = (reset_input + r).sigmoid(), (update_input + z).sigmoid()
            n = (new_input + r * w).tanh()
            difference = before - n
            output = n + z * difference
            ctx.steps.append((before, r, z, n, w, difference))
            outputs.append(output)
        ctx.save_for_backward(weight, starts)
        return torch.stack(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, starts = ctx.saved_tensors
        into_gates, into_products, d_output = [], [], None
        steps = zip(ctx.steps, gradient.unbind(), starts.unbind(), strict=True)
        for (_, r, z, n, w, difference), d_step, start in reversed([*steps]):
            d_output = d_step if d_output is None else d_step + d_output
            d_new = (d_output - d_output * z) * (1 - n * n)
            d_r, d_z = d_new * w * r * (1 - r), d_output * difference * z * (1 - z)
            into_gates.append(torch.cat([d_r, d_z, d_new], 1))
            into_products.append(torch.cat([d_r, d_z, d_new * r], 1))
            d_output = (torch.mm(into_products[-1], weight) + d_output * z).masked_fill(start, 0)
        d_products = torch.stack(into_products[::-1])
        return (
            torch.stack(into_gates[::-1]),
            _weight_gradient(d_products, [step[0] for step in ctx.steps]),
            None,
            d_output,
        )


class _Linear(torch.autograd.Function):
    """The recurrence of `linear_steps`, and the same recurrence backwards in time for its gradient."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, added: Tensor, state: Tensor) -> Tensor:
        states = [state]
        for step_decay, step_added in zip(decay.unbind(), added.unbind(), strict=True):
            states.append(step_added + step_decay * states[-1])
        ctx.save_for_backward(decay, *states)
        return torch.stack(states[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, *before, _ = ctx.saved_tensors
        total, d_decay, d_added = torch.zeros_like(before[0]), [], []
        for step, step_decay, state in reversed([*zip(gradient.unbind(), decay.unbind(), before, strict=True)]):
            total = step + total
            d_decay.append(total * state)
            d_added.append(total)
            total = total * step_decay
        return torch.stack(d_decay[::-1]), torch.stack(d_added[::-1]), total


def _weight_gradient(gradients: Tensor, before: list[Tensor]) -> Tensor:
    """Compute the gradient of the weights from those of their products, `[L, N, G * H]`, and the outputs before every step."""
    return torch.mm(gradients.flatten(0, 1).t(), torch.cat(before))
