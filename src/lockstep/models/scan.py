"""Linear recurrences over time, computed for all steps at once."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["linear_recurrence"]


def linear_recurrence(decay: Tensor, added: Tensor, state: Tensor) -> Tensor:
    """Compute `h[t] = decay[t] * h[t - 1] + added[t]`, `[L, ...]`, with `h[-1] = state`, `[...]`.

    This takes log2(L) operations on whole tensors (Hillis & Steele 1986). A `decay` of 0 makes `h[t]` independent of earlier steps.
    """
    states: Tensor = _LinearRecurrence.apply(decay, added, state)  # type: ignore[no-untyped-call]
    return states


class _LinearRecurrence(torch.autograd.Function):
    """Linear recurrence with its gradient, which is the same recurrence backwards in time."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, added: Tensor, state: Tensor) -> Tensor:
        states = _scan(decay, torch.cat([torch.addcmul(added[:1], decay[:1], state), added[1:]]))
        ctx.save_for_backward(decay, state, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, state, states = ctx.saved_tensors
        # the gradient that step t receives from step t + 1 is multiplied by decay[t + 1]
        following = torch.cat([decay[1:], torch.zeros_like(decay[:1])])
        total = _scan(following.flip(0), gradient.flip(0)).flip(0)
        before = torch.cat([state.unsqueeze(0), states[:-1]])
        return total * before, total, total[0] * decay[0]


def _scan(decay: Tensor, added: Tensor) -> Tensor:
    """Compute the recurrence from a state of zero.

    After each pass, row t is the result for the last `reach` rows up to t; `reach` doubles with each pass.
    """
    reach = 1
    while reach < len(added):
        added = torch.cat([added[:reach], torch.addcmul(added[reach:], decay[reach:], added[:-reach])])
        reach, decay = 2 * reach, torch.cat([decay[:reach], decay[reach:] * decay[:-reach]])
    return added
