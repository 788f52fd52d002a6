"""Tests of V-trace: numbers computed by hand, equation 1 as a sum, and GAE for on-policy samples."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.ppo.episodes import COUNT, STEPS, discounts, rollouts
from torch import Tensor

from lockstep.ppo.advantages import advantages, vtrace


def column(*rows: float) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).unsqueeze(-1)


def flags(*rows: int) -> Tensor:
    return torch.tensor(rows, dtype=torch.bool).unsqueeze(-1)


NEVER, ALL = flags(0, 0, 0), flags(1, 1, 1)
REWARDS, VALUES = column(1, 2, 3), column(4, 8, 16, 32)
HALF = column(0, math.log(0.5), 0)
"""Log ratios of the ratios 1, ½, 1."""


def estimates(
    log_ratios: Tensor, terminated: Tensor = NEVER, truncated: Tensor = NEVER, valid: Tensor = ALL, trace: float = 1.0
) -> tuple[list[float], list[float]]:
    pair = vtrace(REWARDS, VALUES, log_ratios, terminated, truncated, valid, 0.5, trace)
    return pair[0].flatten().tolist(), pair[1].flatten().tolist()


def test_a_ratio_of_one_half_scales_the_step_and_its_trace() -> None:
    # δ2 = 1 (3 + ½·32 - 16) = 3     v2 = 16 + 3             = 19      A2 = 3
    # δ1 = ½ (2 + ½·16 -  8) = 1     v1 =  8 + 1 + ½·½·3     =  9.75   A1 = ½ (2 + ½·19   - 8) = 1.75
    # δ0 = 1 (1 + ½· 8 -  4) = 1     v0 =  4 + 1 + ½·1·1.75  =  5.875  A0 = 1 (1 + ½·9.75 - 4) = 1.875
    advantage, targets = estimates(HALF)
    assert advantage == pytest.approx([1.875, 1.75, 3])
    assert targets == pytest.approx([5.875, 9.75, 19])


def test_lambda_shortens_the_traces_of_both() -> None:
    # v1 = 8 + 1 + ½·(½·½)·3 = 9.375    v0 = 4 + 1 + ½·½·1.375 = 5.34375
    # A1 = ½ (2 + ½·½(19 + 16) - 8) = 1.375    A0 = 1 + ½·½(9.375 + 8) - 4 = 1.34375
    advantage, targets = estimates(HALF, trace=0.5)
    assert targets == pytest.approx([5.34375, 9.375, 19])
    assert advantage == pytest.approx([1.34375, 1.375, 3])


def test_ratios_above_1_count_as_1() -> None:
    assert estimates(column(0.3, 5, 900)) == estimates(column(0, 0, 0))


def test_termination_cuts_bootstrap_and_sum() -> None:
    # δ1 = ½ (2 - 8) = -3    v1 = 5    A1 = -3    v0 = 4 + 1 + ½·-3 = 3.5    A0 = 1 + ½·5 - 4 = -0.5
    advantage, targets = estimates(HALF, terminated=flags(0, 1, 0))
    assert advantage == pytest.approx([-0.5, -3, 3])
    assert targets == pytest.approx([3.5, 5, 19])
    assert estimates(HALF, terminated=flags(0, 1, 0), truncated=flags(0, 1, 0)) == (advantage, targets)


def test_truncation_bootstraps_from_the_value_of_the_last_observation() -> None:
    # row 2 is the reset row: its value is that of the episode's last observation, and it has no target
    # δ1 = ½ (2 + ½·16 - 8) = 1    v1 = 9    A1 = 1    v0 = 4 + 1 + ½·1 = 5.5    A0 = 1 + ½·9 - 4 = 1.5
    advantage, targets = estimates(HALF, truncated=flags(0, 1, 0), valid=flags(1, 1, 0))
    assert advantage == pytest.approx([1.5, 1, 0])
    assert targets == pytest.approx([5.5, 9, 0])


log_ratio_arrays = arrays(np.float64, (STEPS, COUNT), elements=st.floats(-5, 5)).map(torch.from_numpy)


@settings(max_examples=60, deadline=None)
@given(rollouts(), log_ratio_arrays, discounts, discounts)
def test_value_and_ratio_of_the_last_observation_are_ignored_after_termination(
    rollout: dict[str, Tensor], log_ratios: Tensor, gamma: float, trace: float
) -> None:
    with_nan, ratios = dict(rollout, values=rollout["values"].clone()), log_ratios.clone()
    with_nan["values"][1:][rollout["terminated"]] = torch.nan
    ratios[1:][rollout["terminated"][:-1]] = torch.nan
    result = vtrace(**with_nan, log_ratios=ratios, gamma=gamma, trace_lambda=trace)
    expected = vtrace(**rollout, log_ratios=log_ratios, gamma=gamma, trace_lambda=trace)
    assert all(map(torch.equal, result, expected))


@settings(max_examples=60, deadline=None)
@given(rollouts(), log_ratio_arrays, discounts, discounts)
def test_targets_are_the_sum_of_equation_1(
    rollout: dict[str, Tensor], log_ratios: Tensor, gamma: float, trace: float
) -> None:
    """The sum V(x_s) + Σ γ^(t-s) (c_s … c_{t-1}) δ_t goes from each step to the end of the episode or of the rollout."""
    pair = vtrace(log_ratios=log_ratios, gamma=gamma, trace_lambda=trace, **rollout)
    lists = {name: tensor.tolist() for name, tensor in rollout.items()}
    for b in range(COUNT):

        def ratio(t: int, b: int = b) -> float:
            return min(1.0, math.exp(log_ratios[t, b].item()))

        def target(s: int, b: int = b) -> float:
            total, product = lists["values"][s][b], 1.0
            for t in range(s, STEPS):
                next_value = 0.0 if lists["terminated"][t][b] else lists["values"][t + 1][b]
                delta = ratio(t, b) * (lists["rewards"][t][b] + gamma * next_value - lists["values"][t][b])
                total += gamma ** (t - s) * product * delta
                product *= trace * ratio(t, b)
                if lists["terminated"][t][b] or lists["truncated"][t][b]:
                    break
            return total

        for s in range(STEPS):
            if not lists["valid"][s][b]:
                assert pair[0][s, b] == pair[1][s, b] == 0
                continue
            assert pair[1][s, b].item() == pytest.approx(target(s), abs=1e-9)
            if lists["terminated"][s][b]:
                next_value = 0.0
            elif lists["truncated"][s][b] or s == STEPS - 1:
                next_value = lists["values"][s + 1][b]
            else:
                next_value = trace * target(s + 1) + (1 - trace) * lists["values"][s + 1][b]
            expected = ratio(s) * (lists["rewards"][s][b] + gamma * next_value - lists["values"][s][b])
            assert pair[0][s, b].item() == pytest.approx(expected, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(rollouts(), discounts, discounts)
def test_on_policy_estimates_equal_gae(rollout: dict[str, Tensor], gamma: float, trace: float) -> None:
    on_policy = torch.zeros(STEPS, COUNT, dtype=torch.float64)
    advantage, targets = vtrace(log_ratios=on_policy, gamma=gamma, trace_lambda=trace, **rollout)
    expected = advantages(**rollout, gamma=gamma, gae_lambda=trace)
    expected_targets = torch.where(rollout["valid"], expected + rollout["values"][:-1], 0)
    assert torch.allclose(targets, expected_targets, rtol=0, atol=1e-9)
    assert torch.allclose(advantage, expected, rtol=0, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(rollouts(), discounts, discounts)
def test_actions_of_probability_zero_have_no_influence(rollout: dict[str, Tensor], gamma: float, trace: float) -> None:
    never = torch.full((STEPS, COUNT), -math.inf, dtype=torch.float64)
    advantage, targets = vtrace(log_ratios=never, gamma=gamma, trace_lambda=trace, **rollout)
    assert not advantage.any()
    assert torch.equal(targets, torch.where(rollout["valid"], rollout["values"][:-1], 0))


def test_arguments_are_not_changed_and_the_dtype_is_kept() -> None:
    arguments = [x.float() for x in (REWARDS, VALUES, HALF)]
    before = [x.clone() for x in arguments]
    pair = vtrace(*arguments, NEVER, NEVER, ALL, 0.5, 1.0)
    assert {x.dtype for x in pair} == {torch.float32}
    assert all(torch.equal(argument, copy) for argument, copy in zip(arguments, before, strict=True))
