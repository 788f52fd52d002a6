"""Tests of generalized advantage estimation: numbers computed by hand, and its limits."""

import pytest
import torch
from hypothesis import given, settings
from tests.ppo.episodes import COUNT, STEPS, discounts, rollouts
from torch import Tensor

from lockstep.ppo.advantages import advantages, vtrace, without_episode_ends

GAMMA, LAMBDA = 0.5, 0.5


def flags(*rows: int) -> Tensor:
    return torch.tensor(rows, dtype=torch.bool).unsqueeze(-1)


def column(*rows: float) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).unsqueeze(-1)


NEVER = flags(0, 0, 0)
ALL = flags(1, 1, 1)
REWARDS = column(1, 2, 3)
VALUES = column(4, 8, 16, 32)


def gae(terminated: Tensor, truncated: Tensor, valid: Tensor = ALL, gae_lambda: float = LAMBDA) -> list[float]:
    return advantages(REWARDS, VALUES, terminated, truncated, valid, GAMMA, gae_lambda).flatten().tolist()


def test_an_episode_without_an_end() -> None:
    # δ2 = 3 + ½·32 - 16 =  3        A2 =  3
    # δ1 = 2 + ½·16 -  8 =  2        A1 =  2 + ¼·3    = 2.75
    # δ0 = 1 + ½· 8 -  4 =  1        A0 =  1 + ¼·2.75 = 1.6875
    assert gae(NEVER, NEVER) == [1.6875, 2.75, 3]


def test_termination_in_the_middle_cuts_bootstrap_and_sum() -> None:
    # δ1 = 2 - 8 = -6                A1 = -6, nothing of A2
    # δ0 = 1                         A0 = 1 + ¼·-6 = -0.5
    assert gae(flags(0, 1, 0), NEVER) == [-0.5, -6, 3]


def test_truncation_in_the_middle_cuts_only_the_sum() -> None:
    # δ1 = 2 + ½·16 - 8 = 2          A1 = 2: 16 is the value of the last observation
    # δ0 = 1                         A0 = 1 + ¼·2 = 1.5
    assert gae(NEVER, flags(0, 1, 0)) == [1.5, 2, 3]


def test_termination_has_priority_over_truncation() -> None:
    assert gae(flags(0, 1, 0), flags(0, 1, 0)) == gae(flags(0, 1, 0), NEVER)


def test_termination_in_the_last_row() -> None:
    # δ2 = 3 - 16 = -13              A2 = -13
    #                                A1 = 2 + ¼·-13 = -1.25, A0 = 1 + ¼·-1.25 = 0.6875
    assert gae(flags(0, 0, 1), NEVER) == [0.6875, -1.25, -13]


def test_a_reset_row_is_zero_and_does_not_influence_the_row_before() -> None:
    # row 0 ends by truncation: A0 = 1. Row 1 is the reset row. Row 2 begins the next episode: A2 = 3
    assert gae(NEVER, flags(1, 0, 0), valid=flags(1, 0, 1)) == [1, 0, 3]
    # row 0 is a reset row because the episode ended in the rollout before
    assert gae(NEVER, NEVER, valid=flags(0, 1, 1)) == [0, 2.75, 3]


def test_a_reward_that_is_not_finite_spoils_its_own_episode_only() -> None:
    rewards = torch.tensor([[1.0], [2.0], [torch.nan], [4.0]])
    ends, never = torch.tensor([[True], [False], [False], [False]]), torch.zeros(4, 1, dtype=torch.bool)
    found = advantages(rewards, torch.zeros(5, 1), never, ends, ~never, 0.5, 1.0).flatten()
    assert found.isnan().tolist() == [False, True, True, False]
    assert found[[0, 3]].tolist() == [1, 4]


@settings(max_examples=60, deadline=None)
@given(rollouts(), discounts, discounts)
def test_the_value_of_the_last_observation_is_ignored_after_termination(
    rollout: dict[str, Tensor], gamma: float, decay: float
) -> None:
    """The value may be NaN, for example if the observation has a NaN: it belongs to a reset row, and nothing bootstraps
    from it.
    """
    with_nan = dict(rollout, values=rollout["values"].clone())
    with_nan["values"][1:][rollout["terminated"]] = torch.nan
    result, expected = (advantages(**arguments, gamma=gamma, gae_lambda=decay) for arguments in (with_nan, rollout))
    assert torch.equal(result, expected)


def test_the_value_of_the_last_observation_is_used_after_truncation() -> None:
    values = VALUES.clone()
    values[2] = torch.nan
    found = advantages(REWARDS, values, NEVER, flags(0, 1, 0), flags(1, 1, 0), GAMMA, LAMBDA).flatten()
    assert found.isnan().tolist() == [True, True, False]


def test_environments_are_independent() -> None:
    pair = torch.cat([NEVER, flags(0, 1, 0)], 1)
    both = [x.expand(-1, 2).contiguous() for x in (REWARDS, VALUES)]
    found = advantages(*both, pair, torch.zeros_like(pair), torch.ones_like(pair), GAMMA, LAMBDA)
    assert found.T.tolist() == [[1.6875, 2.75, 3], [-0.5, -6, 3]]


def test_arguments_are_not_changed() -> None:
    before = [x.clone() for x in (REWARDS, VALUES)]
    gae(flags(0, 1, 0), NEVER)
    assert torch.equal(REWARDS, before[0])
    assert torch.equal(VALUES, before[1])


@settings(max_examples=60, deadline=None)
@given(rollouts(), discounts)
def test_lambda_0_is_the_one_step_td_error(rollout: dict[str, Tensor], gamma: float) -> None:
    rewards, values = rollout["rewards"].tolist(), rollout["values"].tolist()
    found = advantages(**rollout, gamma=gamma, gae_lambda=0.0).tolist()
    for t in range(STEPS):
        for b in range(COUNT):
            next_value = 0.0 if rollout["terminated"][t, b] else values[t + 1][b]
            expected = rewards[t][b] + gamma * next_value - values[t][b] if rollout["valid"][t, b] else 0.0
            assert found[t][b] == pytest.approx(expected, abs=1e-10)


@settings(max_examples=60, deadline=None)
@given(rollouts(), discounts)
def test_lambda_1_is_the_monte_carlo_return_minus_the_value(rollout: dict[str, Tensor], gamma: float) -> None:
    """The expected value is a sum from each step to the end of its episode or of the rollout."""
    rewards, values = rollout["rewards"].tolist(), rollout["values"].tolist()
    found = advantages(**rollout, gamma=gamma, gae_lambda=1.0).tolist()
    for b in range(COUNT):
        for start in range(STEPS):
            total, discount = 0.0, 1.0
            for t in range(start, STEPS):
                total += discount * rewards[t][b]
                discount *= gamma
                if rollout["terminated"][t, b]:
                    discount = 0.0
                if rollout["terminated"][t, b] or rollout["truncated"][t, b]:
                    break
            expected = total + discount * values[t + 1][b] - values[start][b] if rollout["valid"][start, b] else 0.0
            assert found[start][b] == pytest.approx(expected, abs=1e-9)


def test_float32_stays_float32() -> None:
    found = advantages(REWARDS.float(), VALUES.float(), NEVER, NEVER, ALL, GAMMA, LAMBDA)
    assert found.dtype == torch.float32
    assert found.flatten().tolist() == [1.6875, 2.75, 3]


def brute_force_non_episodic(rewards: Tensor, values: Tensor, valid: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """Return the advantages of one environment, computed step by step without the reset rows."""
    steps = [t for t in range(len(rewards)) if valid[t]]
    next_steps = [*steps[1:], len(rewards)]  # the value after a step is that of the next valid step
    result, advantage = torch.zeros_like(rewards), torch.zeros(())
    for t, next_step in zip(reversed(steps), reversed(next_steps), strict=True):
        advantage = rewards[t] + gamma * values[next_step] - values[t] + gamma * gae_lambda * advantage
        result[t] = advantage
    return result


@pytest.mark.parametrize("use_vtrace", [False, True])
def test_returns_may_continue_across_ends_of_episodes(use_vtrace: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    rewards, values = (torch.randn(rows, 3, generator=generator, dtype=torch.float64) for rows in (12, 13))
    valid = torch.ones(12, 3, dtype=torch.bool)
    valid[0, 0] = valid[4, 0] = valid[9, 0] = valid[3, 1] = valid[11, 2] = False
    rewards = torch.where(valid, rewards, 0)
    never = torch.zeros_like(valid)
    bridged_values, *discounts = without_episode_ends(values, valid, 0.9, 0.8)
    expected = torch.stack(
        [brute_force_non_episodic(*x, 0.9, 0.8) for x in zip(rewards.T, values.T, valid.T, strict=True)], 1
    )
    if use_vtrace:  # v - V is GAE if both policies are equal
        result, targets = vtrace(rewards, bridged_values, torch.zeros_like(rewards), never, never, valid, *discounts)
        assert torch.allclose(torch.where(valid, targets - bridged_values[:-1], 0), expected, rtol=0, atol=1e-12)
    else:
        result = advantages(rewards, bridged_values, never, never, valid, *discounts)
    assert torch.allclose(result, expected, rtol=0, atol=1e-12)
