"""Adam on a flat buffer against torch.optim.Adam."""

import pytest
import torch
from torch import Tensor

from lockstep.ppo.adam import Adam
from lockstep.randomness import stream

SIZE, CUT = 12, 7
PARTS = {"policy": CUT, "value": SIZE - CUT}
SLICES = {"policy": slice(0, CUT), "value": slice(CUT, SIZE)}


def gradients(steps: int) -> Tensor:
    """Of very different sizes, some of them 0."""
    drawn = torch.from_numpy(stream(1, "test").standard_normal((steps, SIZE)))
    drawn[:, 3] = 0
    return drawn * torch.logspace(-6, 3, SIZE, dtype=torch.float64)


def step(adam: Adam, gradient: Tensor, rates: dict[str, float]) -> None:
    adam.propose(gradient, 1, rates)
    adam.accept()


def test_equals_torch() -> None:
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


def test_parts_have_their_own_times_and_rates() -> None:
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


def test_a_part_that_is_not_stepped_stays_as_it_is() -> None:
    weights = torch.ones(SIZE, dtype=torch.float64)
    adam = Adam(weights, PARTS, 1e-8)
    step(adam, torch.ones(SIZE, dtype=torch.float64), {"policy": 0.1})
    assert torch.equal(weights[CUT:], torch.ones(SIZE - CUT, dtype=torch.float64))
    assert not adam.first[CUT:].any()
    assert not adam.second[CUT:].any()
    assert weights[0].item() == pytest.approx(0.9)  # the first step of Adam is the rate, whatever the gradient


def test_state_goes_on_exactly() -> None:
    stopped = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    through = stopped.clone()
    one, whole = Adam(stopped, PARTS, 1e-8), Adam(through, PARTS, 1e-8)
    for count, gradient in enumerate(gradients(20)):
        if count == 10:
            saved = {name: tensor.clone() for name, tensor in one.state().items()}
            one = Adam(stopped, PARTS, 1e-8)
            one.load(saved)
        rates = {"policy": 1e-2} if count % 2 else {"policy": 1e-2, "value": 1e-2}
        step(one, gradient, rates)
        step(whole, gradient, rates)
    assert torch.equal(stopped, through)


def test_unclipped_parts_do_not_count_in_the_norm() -> None:
    """As if they were alone: the first part with the limit, the second without."""
    begun = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    both, clipped, free = begun.clone(), begun[:CUT].clone(), begun[CUT:].clone()
    ours = Adam(both, {"all": CUT, "curiosity": SIZE - CUT}, 1e-2, limit=0.5, unclipped=1)
    alone = Adam(clipped, {"all": CUT}, 1e-2, limit=0.5), Adam(free, {"all": SIZE - CUT}, 1e-2)
    for gradient in 1e3 * gradients(5):
        (norm,) = ours.propose(gradient, 1, {"all": 1e-2, "curiosity": 3e-3})
        ours.accept()
        (expected,) = alone[0].propose(gradient[:CUT], 1, {"all": 1e-2})
        alone[0].accept()
        step(alone[1], gradient[CUT:], {"all": 3e-3})
        assert norm == expected > 0.5
    assert torch.equal(both, torch.cat([clipped, free]))


def test_parts_clipped_separately_equal_parts_that_are_alone() -> None:
    begun = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    both = begun.clone()
    ours = Adam(both, PARTS, 1e-2, limit=0.5, separately=True)
    weights = {name: begun[part].clone() for name, part in SLICES.items()}
    alone = {name: Adam(weights[name], {name: len(weights[name])}, 1e-2, limit=0.5) for name in PARTS}
    for gradient in 1e3 * gradients(5):
        (norm,) = ours.propose(gradient, 1, {"policy": 1e-2, "value": 3e-3})
        ours.accept()
        for name, rate in (("policy", 1e-2), ("value", 3e-3)):
            step(alone[name], gradient[SLICES[name]], {name: rate})
        assert norm == pytest.approx(gradient.norm().item())
    assert torch.equal(both, torch.cat(list(weights.values())))
