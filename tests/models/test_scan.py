"""The recurrence in a few steps over everything against one step at a time."""

import pytest
import torch
from torch import Tensor

from lockstep.models.scan import linear_recurrence
from lockstep.randomness import stream


def one_by_one(decay: Tensor, added: Tensor, state: Tensor) -> Tensor:
    states = []
    for kept, new in zip(decay, added, strict=True):
        state = kept * state + new
        states.append(state)
    return torch.stack(states)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13])
def test_equals_one_step_at_a_time(length: int) -> None:
    random = stream(1, "scan")
    decay = random.uniform(0, 1, (length, 3, 2)) * (random.random((length, 3, 1)) < 0.7)
    arrays = (decay, random.normal(0, 1, (length, 3, 2)), random.normal(0, 1, (3, 2)))
    given = [torch.from_numpy(array).requires_grad_() for array in arrays]
    ours, theirs = linear_recurrence(*given), one_by_one(*given)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    weight = torch.from_numpy(random.normal(0, 1, ours.shape))
    gradients = [torch.autograd.grad((found * weight).sum(), given) for found in (ours, theirs)]
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
