"""Tests of Adam on a flat buffer, compared with torch.optim.Adam."""

import pytest
import torch
from torch import Tensor

from lockstep.ppo.adam import Adam
from lockstep.randomness import stream

SIZE, CUT = 12, 7
PARTS = {"policy": CUT, "value": SIZE - CUT}
SLICES = {"policy": slice(0, CUT), "value": slice(CUT, SIZE)}


def gradients(steps: int) -> Tensor:
    """Return gradients of very different sizes, some of them 0."""
    drawn = torch.from_numpy(stream(1, "test").standard_normal((steps, SIZE)))
    drawn[:, 3] = 0
    return drawn * torch.logspace(-6, 3, SIZE, dtype=torch.float64)


def step(adam: Adam, gradient: Tensor, rates: dict[str, float]) -> None:
    adam.propose(gradient, 1, rates)
    adam.accept()


def test_one_part_equals_torch() -> None:
    weights = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    expected = torch.nn.Parameter(weights.clone())
    ours, theirs = Adam(weights, {"all": SIZE}, 1e-5), torch.optim.Adam([expected], eps=1e-5)
    for count, gradient in enumerate(gradients(50)):
        rate = 1e-2 / (count + 1)
        step(ours, gradient, {"all": rate})
        theirs.param_groups[0]["lr"], expected.grad = rate, gradient.clone()
        theirs.step()
    assert (weights - expected.detach()).abs().max() < 1e-12
    assert (weights - torch.linspace(-1, 1, SIZE, dtype=torch.float64)).abs().max() > 1e-3


def test_rate_that_overflows_in_float32_gives_no_warning() -> None:
    adam = Adam(torch.ones(SIZE), {"all": SIZE}, 1e-5, limit=1e300)
    adam.propose(torch.ones(SIZE), 1, {"all": 1e38})
    assert adam.overflows()


def test_parts_have_their_own_step_counts_and_rates() -> None:
    weights = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    expected = {name: torch.nn.Parameter(weights[part].clone()) for name, part in SLICES.items()}
    ours = Adam(weights, PARTS, 1e-8)
    theirs = {name: torch.optim.Adam([parameter]) for name, parameter in expected.items()}
    for count, gradient in enumerate(gradients(30)):
        rates = (
            {"policy": 1e-2}
            if count % 3 == 0
            else {"value": 3e-3}
            if count % 3 == 1
            else {"policy": 1e-2, "value": 3e-3}
        )
        step(ours, gradient, rates)
        for name, rate in rates.items():
            theirs[name].param_groups[0]["lr"], expected[name].grad = rate, gradient[SLICES[name]].clone()
            theirs[name].step()
    for name, part in SLICES.items():
        assert (weights[part] - expected[name].detach()).abs().max() < 1e-12
    assert ours.steps == {"policy": 20, "value": 20}


def test_a_part_that_is_not_stepped_does_not_change() -> None:
    weights = torch.ones(SIZE, dtype=torch.float64)
    adam = Adam(weights, PARTS, 1e-8)
    step(adam, torch.ones(SIZE, dtype=torch.float64), {"policy": 0.1})
    assert torch.equal(weights[CUT:], torch.ones(SIZE - CUT, dtype=torch.float64))
    assert not adam.first[CUT:].any()
    assert not adam.second[CUT:].any()
    assert weights[0].item() == pytest.approx(0.9)  # the first step of Adam is the rate, whatever the gradient


def test_a_restored_optimizer_continues_exactly() -> None:
    restored_weights = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    expected_weights = restored_weights.clone()
    restored, uninterrupted = Adam(restored_weights, PARTS, 1e-8), Adam(expected_weights, PARTS, 1e-8)
    for count, gradient in enumerate(gradients(20)):
        if count == 10:
            saved = {name: tensor.clone() for name, tensor in restored.state().items()}
            restored = Adam(restored_weights, PARTS, 1e-8)
            restored.load(saved)
        rates = {"policy": 1e-2} if count % 2 else {"policy": 1e-2, "value": 1e-2}
        step(restored, gradient, rates)
        step(uninterrupted, gradient, rates)
    assert torch.equal(restored_weights, expected_weights)


def test_unclipped_parts_do_not_count_in_the_norm() -> None:
    """The result equals that of two optimizers: the first part with clipping, the second without."""
    initial = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    weights, clipped, unclipped = initial.clone(), initial[:CUT].clone(), initial[CUT:].clone()
    ours = Adam(weights, {"all": CUT, "curiosity": SIZE - CUT}, 1e-2, limit=0.5, unclipped=1)
    separate = Adam(clipped, {"all": CUT}, 1e-2, limit=0.5), Adam(unclipped, {"all": SIZE - CUT}, 1e-2)
    for gradient in 1e3 * gradients(5):
        (norm,) = ours.propose(gradient, 1, {"all": 1e-2, "curiosity": 3e-3})
        ours.accept()
        (expected,) = separate[0].propose(gradient[:CUT], 1, {"all": 1e-2})
        separate[0].accept()
        step(separate[1], gradient[CUT:], {"all": 3e-3})
        assert norm == expected > 0.5
    assert torch.equal(weights, torch.cat([clipped, unclipped]))


def test_separate_clipping_equals_one_optimizer_per_part() -> None:
    initial = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    all_weights = initial.clone()
    ours = Adam(all_weights, PARTS, 1e-2, limit=0.5, separately=True)
    weights = {name: initial[part].clone() for name, part in SLICES.items()}
    separate = {name: Adam(weights[name], {name: len(weights[name])}, 1e-2, limit=0.5) for name in PARTS}
    for gradient in 1e3 * gradients(5):
        (norm,) = ours.propose(gradient, 1, {"policy": 1e-2, "value": 3e-3})
        ours.accept()
        for name, rate in (("policy", 1e-2), ("value", 3e-3)):
            step(separate[name], gradient[SLICES[name]], {name: rate})
        assert norm == pytest.approx(gradient.norm().item())
    assert torch.equal(all_weights, torch.cat(list(weights.values())))
