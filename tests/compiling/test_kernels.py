"""Tests of interpreted kernels against the same formulas run operation by operation."""

import pytest
import torch
from tests.compiling.formulas import CASES, formula_of
from tests.watched import COUNT, STEPS, agent_of, rollouts_of

from lockstep.algorithm.update import Update
from lockstep.compiling.kernels import InterpretedKernel
from lockstep.compiling.values import Unsupported
from lockstep.group.solo import Solo
from lockstep.ppo.formula import StepFormula
from lockstep.ppo.settings import PPOConfig


@pytest.mark.parametrize("case", CASES)
def test_gradient_equals_autograd(case: str) -> None:
    formula, arguments = formula_of(*CASES[case])
    weights = formula.loss.agent.flat.buffer  # traced with other weights than it is called with, as in training
    (plain,), (traced,) = formula(*arguments), InterpretedKernel(formula, (weights, *arguments[1:]))(*arguments)
    assert plain.abs().max() > 0.1
    bound = 1e-6 if plain.dtype == torch.float32 else 1e-12
    assert (traced - plain).abs().max() <= bound * plain.abs().max()


@pytest.mark.parametrize("count", [1, 7, 300])
def test_any_number_of_rows(count: int) -> None:
    formula, arguments = formula_of(*CASES["cartpole"][:5], max(count, 4))
    arguments = *arguments[:2], arguments[2][:count].contiguous()
    (plain,), (traced,) = formula(*arguments), InterpretedKernel(formula, arguments)(*arguments)
    assert (traced - plain).abs().max() <= 1e-6 * plain.abs().max()


def test_values_that_are_not_finite_propagate() -> None:
    formula, arguments = formula_of(*CASES["continuous"])
    kernel = InterpretedKernel(formula, arguments)
    for value in (float("nan"), float("inf")):
        arguments[2][5, 0] = value
        (plain,), (traced,) = formula(*arguments), kernel(*arguments)
        assert torch.equal(traced.isnan(), plain.isnan())
        assert traced.isnan().any()


@pytest.mark.parametrize("parts", [(40,), (25, 15), (3000,)])
def test_step_equals_the_formula(parts: tuple[int, ...]) -> None:
    size, generator = sum(parts), torch.Generator().manual_seed(3)
    weights, first, total = (torch.randn(size, generator=generator) for _ in range(3))
    total = torch.cat([total, torch.ones(5)])
    numbers = torch.tensor([24, 0.5, 1, 1e-2, 3, *([0, 0, 1] if len(parts) == 2 else [])])
    arguments = (weights, first, first.square(), total, numbers)
    formula = StepFormula(parts, 1e-5, len(parts))
    kernel = InterpretedKernel(formula, arguments)
    for plain, traced in zip(formula(*arguments), kernel(*arguments), strict=True):
        assert (traced - plain).abs().max() <= 1e-6
    if len(parts) == 2:  # the part without a step keeps its bits
        moved, *_ = kernel(*arguments)
        assert torch.equal(moved[parts[0] :], weights[parts[0] :])
        assert not torch.equal(moved[: parts[0]], weights[: parts[0]])


def test_call_overwrites_results_unless_they_are_its_arguments() -> None:
    kernel = InterpretedKernel(lambda x: (x * 2,), (torch.ones(3),))
    (first,), (second,) = kernel(torch.ones(3)), kernel(torch.full((3,), 5.0))
    assert first is second
    assert second.tolist() == [10, 10, 10]
    for before, after in ((10, 20), (20, 40), (40, 80)):
        (third,) = kernel(second)
        assert (second.tolist(), third.tolist()) == ([before] * 3, [after] * 3)
        (second,) = kernel(torch.full((3,), after / 2))
        assert second is third


def test_unsupported_operation_is_named() -> None:
    with pytest.raises(
        Unsupported, match=r"does not support the operation 'cumsum' of PyTorch; use --runtime\.compile off"
    ):
        InterpretedKernel(lambda x: (x.cumsum(0),), (torch.ones(3),))


@pytest.mark.parametrize(
    "settings",
    [
        {"kl_stop": 1e-6, "value_learning_rate": 1e-3, "epochs": 3},
        {"policy_epochs": 1, "value_epochs": 3},
        {"policy_epochs": 3, "value_epochs": 1, "kl_stop": 1e-6},
    ],
    ids=["stopped", "critic only", "policy only"],
)
def test_no_kernel_is_made_during_training(settings: dict[str, object]) -> None:
    agent, made, training = agent_of(), [], []

    def make(formula, examples):
        name = type(formula).__name__
        made.append(name)
        assert not training, f"{name} is made during training"
        return formula

    config = PPOConfig(minibatches=2, learning_rate=1e-2, **settings)
    update = Update(agent, config, Solo(), range(2), 1, make_kernel=make)
    update.make_kernels(STEPS * COUNT, 1)
    training.append(True)
    assert made
    for iteration in (1, 2):
        update(rollouts_of(agent, 2), iteration, 0.0)


def test_first_result_is_complete_before_the_others_are_computed() -> None:
    seen: list[torch.Tensor] = []

    def formula(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, total = (x @ y).tanh(), x.sum()
        second = first @ x
        return torch.cat([first.reshape(-1), total.reshape(1)]), torch.cat(
            [second.reshape(-1), (second @ y).reshape(-1)]
        )

    x, y = (torch.linspace(-1, 1, 36, dtype=torch.float64).roll(k).view(6, 6) for k in (0, 5))
    kernel = InterpretedKernel(formula, (x, y))
    expected = [result.clone() for result in kernel(x, y)]
    (results,) = kernel._results
    for result in results:
        result.fill_(torch.nan)

    def then(first: torch.Tensor) -> None:
        seen.append(first.clone())
        assert results[1].isnan().all()

    found = kernel.call_in_two((x, y), then)
    assert torch.equal(seen[0], expected[0])
    assert all(map(torch.equal, found, expected))


def test_first_result_that_is_filled_or_overwritten_in_part() -> None:
    """Copies to it must stay behind what is written before."""

    def padded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        doubled = x * 2 @ x
        result = x.new_zeros(8, 6)
        result[1:7] = doubled
        return (result,)

    def overwritten(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        early = x * 2 @ x
        result = torch.cat([x, early])
        result[3:9] = early
        return (result,)

    def gradient_of_a_slice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            return torch.autograd.grad((y[1:4] * x[:3]).sum(), y)

    x = torch.linspace(-1, 1, 36, dtype=torch.float64).view(6, 6)
    for formula in (padded, overwritten, gradient_of_a_slice):
        assert torch.equal(InterpretedKernel(formula, (x,))(x)[0], formula(x)[0]), formula.__name__
