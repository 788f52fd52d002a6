"""The optimizer step in blocks has the bits of its formula."""

import math

import pytest
import torch

from lockstep.ppo import blocked_step
from lockstep.ppo.adam import Adam
from lockstep.ppo.blocked_step import BlockedStep
from lockstep.ppo.formula import StepFormula
from lockstep.randomness import stream

OTHERS = 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("sizes", "clipped", "separately"),
    [((1,), 1, False), ((1000,), 1, False), ((300, 700, 33), 2, False), ((300, 700, 33), 2, True)],
)
def test_steps_equal_the_formula(
    sizes: tuple[int, ...], clipped: int, separately: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked_step, "_BLOCK", 64)
    formula, size = StepFormula(sizes, 1e-5, clipped, separately), sum(sizes)
    draw = stream(1, "test").standard_normal
    weights = torch.from_numpy(draw(size)).to(dtype)
    state = weights, torch.zeros_like(weights), torch.zeros_like(weights)
    expected = state
    examples = (*state, torch.zeros(size + OTHERS, dtype=dtype), torch.zeros(2 + 3 * len(sizes), dtype=dtype))
    step = BlockedStep(formula, examples)
    for count in range(1, 6):
        total = torch.from_numpy(100 * draw(size + OTHERS)).to(dtype)
        numbers = [64.0, math.inf if count == 2 else 0.5]
        for part in range(len(sizes)):
            is_on = (count + part) % 3 > 0
            numbers += [1, 1e-2 / (1 - 0.9**count), 1 / math.sqrt(1 - 0.999**count)] if is_on else [0, 0, 1]
        arguments = total, torch.tensor(numbers, dtype=dtype)
        expected = formula(*expected[:3], *arguments)
        step(*state, *(2 * argument for argument in arguments))  # proposed and not accepted
        found = step(*state, *arguments)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
        state = found[0].clone(), found[1], found[2]  # the weights are copied, the moments are not


def test_numbers_that_are_not_finite_appear_in_the_same_places() -> None:
    formula, size = StepFormula((6,), 1e-5, 1), 6
    state = torch.ones(size), torch.zeros(size), torch.zeros(size)
    total = torch.tensor([1.0, math.inf, math.nan, 1.0, -math.inf, 0.0, 2.0])
    arguments = (*state, total, torch.tensor([1.0, 0.5, 1.0, 1e-2, 1.0]))
    for one, other in zip(BlockedStep(formula, arguments)(*arguments), formula(*arguments), strict=True):
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))


def test_saved_moments_do_not_change_later() -> None:
    adam = Adam(torch.ones(4), {"all": 4}, 1e-5)
    states = []
    for _ in range(3):
        adam.propose(torch.ones(4), 1, {"all": 1e-2})
        adam.accept()
        states.append(adam.state())
    firsts = [state["first"] for state in states]
    assert firsts[0] is not adam.first
    assert torch.equal(firsts[0], torch.full((4,), 0.1))
    assert (firsts[0] < firsts[1]).all()
