"""Tests of the parallel linear recurrence, compared with one step at a time."""

import pytest
import torch
from torch import Tensor

from lockstep.models.scan import linear_recurrence
from lockstep.randomness import stream


def step_by_step(decay: Tensor, added: Tensor, state: Tensor) -> Tensor:
    states = []
    for step_decay, step_added in zip(decay, added, strict=True):
        state = step_decay * state + step_added
        states.append(state)
    return torch.stack(states)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13])
def test_the_parallel_recurrence_equals_single_steps(length: int) -> None:
    random = stream(1, "scan")
    decay = random.uniform(0, 1, (length, 3, 2)) * (random.random((length, 3, 1)) < 0.7)
    arrays = (decay, random.normal(0, 1, (length, 3, 2)), random.normal(0, 1, (3, 2)))
    inputs = [torch.from_numpy(array).requires_grad_() for array in arrays]
    parallel, sequential = linear_recurrence(*inputs), step_by_step(*inputs)
    torch.testing.assert_close(parallel, sequential, rtol=0, atol=1e-12)
    weight = torch.from_numpy(random.normal(0, 1, parallel.shape))
    gradients = [torch.autograd.grad((result * weight).sum(), inputs) for result in (parallel, sequential)]
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
